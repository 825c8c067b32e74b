"""Hypothesis strategies for whole cases: a space file, a command that it fits, and what a store may hold of it.

``cases`` draws a space and a command, then trials of every kind that a store can come to hold: those of the very
command, and those of other programs, sizes, units, releases and spellings. All of it is what a user, a recorder or an
import can have written: each value is legal in a record, however odd; NaN and infinity are not.
"""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import strategies as st

from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.records.values import Config, Scalar, Value, Workload

ODD_SPEEDS = (5e-324, 1e-300, 1e-6, 1e-3, 1e12, 1e15, 1e300, 1.7e308)
"""Throughputs of which some are possible, hardly, and some are none that a training can have."""

ODD_NUMBERS: tuple[Scalar, ...] = (0, -1, -0.0, 0.5, 2**63 - 1, 2**64, -(2**64), 1e308, -1e308, 5e-324, 1e-9, 2**31)
ODD_TEXTS = (
    "\udcff",
    "",
    " ",
    "bfloat16",
    "größe",
    "层",
    "\u202ex",
    "a b",
    "--x",
    "=",
    "x" * 4096,
    "nan",
    "inf",
    "[1, 2]",
    "\n",
    "🙂",
)
ODD_VALUES: tuple[Value, ...] = (
    *ODD_NUMBERS,
    *ODD_TEXTS,
    True,
    False,
    (),
    (1,),
    (1, "a"),
    ("FULL_SHARD",) * 3,
    tuple(range(300)),
    (1e308, 5e-324),
)

DEVICES = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla V100", "cpu", "AMD Instinct MI300X", "größe 3")
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_STANDARD = ("micro_batch_size", "gradient_accumulation_steps", "tp_degree", "pp_degree", "zero_stage", "compile")
_PLAIN = ("num_workers", "bucket_mb", "fused", "mode", "prefetch", "ratio", "x1", "x2")
_OBSERVED = (
    "device",
    "n_params",
    "device_memory_gib",
    "layer_n_params",
    "micro_batch_size",
    "n_layers",
    "seq_len",
    "host",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One parameter of a space file, and how the command states it.

    Args:
        name: of the parameter.
        keys: of its table, as TOML.
        choices: values of one entry; empty for a derived one.
        own: what the command states; ``None`` for nothing.
        entries: how many values it has, one for each layer; ``None`` for one value.
        words: of the command that state it.
        variables: of the environment that state it.
        file_keys: of the config file that state it.
    """

    name: str
    keys: tuple[str, ...]
    choices: tuple[Scalar, ...] = ()
    own: Value | None = None
    entries: int | None = None
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    file_keys: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A space, a command and a store.

    Args:
        space: text of the space file, TOML; legal or not.
        files: name -> text of what else lies in the working folder.
        nnodes: of the job.
        nproc_per_node: likewise.
        words: arguments of the script.
        env: variables that the command sets.
        trials: what the store holds.
    """

    space: str
    files: Mapping[str, str]
    nnodes: int
    nproc_per_node: int
    words: tuple[str, ...]
    env: Mapping[str, str]
    trials: tuple[Trial, ...]

    @property
    def component(self) -> list[str]:
        """The command as TorchX takes it."""
        env = ["--env", ",".join(f"{name}={value}" for name, value in self.env.items())] if self.env else []
        size = f"{self.nnodes}x{self.nproc_per_node}"
        return ["dist.ddp", "-j", size, *env, "--script", "train.py", "--", *self.words]

    @property
    def torchrun(self) -> list[str]:
        """The command as torchrun takes it."""
        return [f"--nnodes={self.nnodes}", f"--nproc_per_node={self.nproc_per_node}", "train.py", *self.words]


@contextmanager
def laid_out(case: Case, folder: Path) -> Iterator[Path]:
    """Make ``folder`` the working folder of the case, with its own store and cache; yield the folder."""
    (folder / "space.toml").write_text(case.space, encoding="utf-8")
    for name, text in {"train.py": "", **case.files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TORCHX_CUBICML_CACHE", str(folder / "cache"))
        patch.setenv("TORCHX_CUBICML_STORE", str(folder / "store"))
        for name, value in case.env.items():
            patch.setenv(name, value)
        (folder / "store").mkdir()
        store = TrialStore(str(folder / "store"))
        for trial in case.trials:
            store.add(trial)
        yield folder


# Spaces and commands


@st.composite
def whole_choices(draw: st.DrawFn) -> tuple[Scalar, ...]:
    """Draw two or more whole numbers, mostly those that trainings have."""
    pools = [(1, 2, 4, 8, 16), (1, 2, 3, 5, 6, 7, 12, 24), (0, 1, 2), (1, 10**6, 2**62), (-4, 0, 64)]
    pool = draw(st.sampled_from(pools))
    return tuple(draw(st.lists(st.sampled_from(pool), min_size=2, max_size=len(pool), unique=True)))


def _of(pool: Sequence[Scalar]) -> st.SearchStrategy[tuple[Scalar, ...]]:
    return st.lists(st.sampled_from(pool), min_size=2, max_size=4, unique=True).map(tuple)


@st.composite
def legal_values(draw: st.DrawFn) -> tuple[tuple[str, ...], tuple[Scalar, ...]]:
    """Draw the keys of a parameter's table that say its legal values, and those values."""
    shape = draw(st.sampled_from(["whole", "whole", "log2", "even", "words", "switch", "decimals", "single"]))
    if shape == "log2":
        low, doublings = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 6))
        values = tuple(low * 2**power for power in range(doublings + 1))
        return (f"low = {low}", f"high = {values[-1]}", 'scale = "log2"'), values
    if shape == "even":
        low, count = draw(st.integers(0, 3)), draw(st.integers(2, 12))
        values = tuple(range(low, low + count))
        return (f"low = {low}", f"high = {values[-1]}"), values
    values = draw(
        {
            "whole": whole_choices(),
            "words": _of(("a", "b", "größe", "bf16", "fp32", "none", "full", "a b", "auto", "1")),
            "switch": st.just((False, True)),
            "decimals": _of((0.1, 0.5, 1.0, 1e-5, 1e5, 1e300, 1e-300)),
            "single": st.sampled_from([(1,), ("only",), (True,), (0.1,)]),
        }[shape]
    )
    return (f"choices = {_toml(values)}",), values


@st.composite
def knobs(draw: st.DrawFn, name: str, others: Sequence[Knob]) -> Knob:
    """Draw a parameter of that name, beside ``others`` that it may depend on."""
    numbers = [other.name for other in others if other.choices and all(type(each) is int for each in other.choices)]
    free = [other for other in others if other.choices and other.entries is None]
    shape = draw(st.sampled_from(["plain", "plain", "plain", "layered", "derived", "idle"]))
    if shape == "derived" and numbers:
        keys = (f"derive = {json.dumps(draw(_expressions(numbers)))}", f'flag = "--{name}"', "default = 1")
        return Knob(name=name, keys=keys)
    if shape == "layered":
        return draw(layered(name))
    if name.endswith("_degree") and draw(st.integers(0, 3)):  # a word or a large number is none, and no config legal
        keys, choices = ("choices = [1, 2]",), (1, 2)
    else:
        keys, choices = draw(legal_values())
    keys += tuple(draw(st.lists(st.just("changes_training = true"), max_size=1)))
    if shape == "idle" and free:
        other = draw(st.sampled_from(free))
        keys += (f"when = {json.dumps(f'{other.name} == {_literal(draw(st.sampled_from(other.choices)))}')}",)
        keys += (f"default = {_toml(choices[0])}",)
    off_list = not isinstance(choices[0], bool) and draw(st.integers(0, 19)) == 0
    own = (77 if type(choices[0]) is int else choices[0]) if off_list else draw(st.sampled_from(choices))
    return draw(placed(Knob(name=name, keys=keys, choices=choices, own=own)))


@st.composite
def layered(draw: st.DrawFn, name: str) -> Knob:
    """Draw a parameter with a value per layer, with groups or without."""
    choices: tuple[Scalar, ...] = draw(st.sampled_from([STRATEGIES, STRATEGIES[:2], (1, 2, 4), ("none", "full")]))
    entries, n_groups = draw(st.sampled_from([1, 2, 4, 6])), draw(st.sampled_from([None, None, 1, 2, 9]))
    counted = draw(st.booleans())
    keys = (
        f"choices = {_toml(choices)}",
        f'per_layer = "{LAYERS.format(entries)}"' if counted else f"per_layer = {entries}",
        *([f"groups = {n_groups}"] if n_groups else []),
    )
    alike = draw(st.booleans())
    own = (
        (draw(st.sampled_from(choices)),) * entries
        if alike
        else tuple(draw(st.lists(st.sampled_from(choices), min_size=entries, max_size=entries)))
    )
    return Knob(
        name=name,
        keys=(*keys, f'flag = "--{name}"'),
        choices=choices,
        own=own,
        entries=entries,
        words=(f"--{name}", ",".join(map(_spelled, own))),
    )


LAYERS = "depth_{}"
"""Name of the workload fact that counts so many layers."""


@st.composite
def placed(draw: st.DrawFn, knob: Knob) -> Knob:
    """Draw where in the command a parameter of one value stands."""
    name, own = knob.name, knob.own
    assert own is not None
    place = draw(st.sampled_from(["flag", "flag", "flag", "equals", "env", "file", "absent"]))
    if place == "env":
        key = f'env = "{name.upper()}"'
        if any(letter in _spelled(own) for letter in ", =;"):
            place = "flag"
        else:
            return replace(knob, keys=(*knob.keys, key), variables={name.upper(): _spelled(own)})
    if place == "file":
        keys = (*knob.keys, 'file = "--config"', f'key = "run.{name}"')
        return replace(knob, keys=keys, file_keys={name: own})
    if place == "equals":
        return replace(knob, keys=(*knob.keys, f'flag = "{name}="'), words=(f"{name}={_spelled(own)}",))
    keys = (*knob.keys, f'flag = "--{name}"')
    if place == "absent":  # from the command: the default counts, or there is none, which is told
        stated = any(key.startswith("default") for key in keys) or draw(st.integers(0, 9)) == 0
        return replace(knob, keys=keys if stated else (*keys, f"default = {_toml(own)}"))
    if isinstance(own, bool) and draw(st.booleans()):
        return replace(knob, keys=keys, words=(f"--{name}",) if own else ())
    return replace(knob, keys=keys, words=(f"--{name}", _spelled(own)))


def _expressions(numbers: Sequence[str]) -> st.SearchStrategy[str]:
    name = st.sampled_from(numbers)
    return st.one_of(
        name.map("{0} * 2".format),
        st.tuples(name, name).map(lambda pair: f"{pair[0]} * {pair[1]}"),
        name.map("max({0}, 2) + world_size".format),
        name.map("64 / {0}".format),
        name.map("world_size // max({0}, 1)".format),
        st.just("global_batch_size * 2"),
    )


@st.composite
def constraints(draw: st.DrawFn, parameters: Sequence[Knob]) -> list[str]:
    """Draw rules between parameters; of some spaces few configs are legal then, of some none."""
    numbers = [each.name for each in parameters if each.choices and type(each.choices[0]) is int and not each.entries]
    lists = [each for each in parameters if each.entries]
    rules: list[str] = []
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        if numbers and draw(st.booleans()):
            one, other = draw(st.sampled_from(numbers)), draw(st.sampled_from(numbers))
            shapes = [f"{one} * {other} <= 64", f"{one} <= {other} or {one} > 2", f"world_size % max({one}, 1) == 0"]
            shapes += [f"{one} == {other}", f"{one} < {other}", f"{one} > 10 ** 9"] if draw(st.booleans()) else []
            rules.append(draw(st.sampled_from(shapes)))
        elif lists:
            each = draw(st.sampled_from(lists))
            rules.append(f"{_literal(each.choices[0])} in {each.name}")
    return rules


@st.composite
def spaces(draw: st.DrawFn) -> tuple[str, list[Knob], dict[str, Value], dict[str, int]]:
    """Draw a space file with its parameters, the facts that it declares, and nodes and processes of the job."""
    n_parameters = draw(st.integers(1, 4))
    pool = st.lists(st.sampled_from([*_STANDARD, *_PLAIN]), min_size=n_parameters, max_size=n_parameters, unique=True)
    parameters: list[Knob] = []
    for name in draw(pool):
        parameters.append(draw(knobs(name, parameters)))
    if draw(st.integers(0, 3)) == 0:
        parameters.append(draw(_sharding()))
    sizes = {"nnodes": draw(st.sampled_from([1, 1, 1, 2])), "nproc_per_node": draw(st.sampled_from([1, 2, 4, 8]))}
    if draw(st.integers(0, 9)) == 0:
        keys = ("low = 1", "high = 8", 'scale = "log2"', 'torchrun = "--nproc_per_node"')
        size = sizes["nproc_per_node"]
        parameters.append(Knob(name="nproc_per_node", keys=keys, choices=(1, 2, 4, 8), own=size))
    facts: dict[str, Value] = {LAYERS.format(each.entries): each.entries for each in parameters if each.entries}
    if draw(st.booleans()):  # as much as the formulas of a transformer's step time want
        facts |= {"n_layers": draw(st.sampled_from([1, 4, 32])), "d_model": 512, "seq_len": 128, "vocab_size": 1000}
    if draw(st.integers(0, 5)) == 0:
        facts[draw(st.sampled_from(["d_model", "seq_len", "vocab_size", "n_layers", "other"]))] = draw(
            st.sampled_from([0, 1, 10**12, "auto", 0.5, 2**62])
        )
    lines = [f'objective = "{objective}"' for objective in draw(st.sampled_from([(), ("samples_per_second",)]))]
    lines += ["[workload]", *(f"{name} = {_toml(value)}" for name, value in facts.items())]
    for each in parameters:
        lines += [f"[parameters.{each.name}]", *each.keys]
    for rule in draw(constraints(parameters)):
        lines += ["[[constraints]]", f"require = {json.dumps(rule)}"]
    lines += draw(_rewrite_rules([each.name for each in parameters]))
    return "\n".join([*lines, ""]), parameters, facts, sizes


@st.composite
def _sharding(draw: st.DrawFn) -> Knob:
    keys = (f"choices = {_toml(STRATEGIES)}", 'hook = "fsdp"')
    return Knob(name="sharding_strategy", keys=keys, choices=STRATEGIES, own=draw(st.just("FULL_SHARD")))


@st.composite
def _rewrite_rules(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    shape = draw(st.sampled_from(["none", "none", "bold", "frozen", "explores"]))
    return {
        "none": [],
        "bold": ["[rewrite]", "min_gain = 0", "min_fit = 0"],
        "frozen": ["[rewrite]", f'freeze = ["{names[0]}"]'],
        "explores": ["[rewrite]", "explore = 1.0", "explore_budget_gpu_hours = 1e6", "min_fit = 0.1"],
    }[shape]


# Trials


@st.composite
def cases(draw: st.DrawFn, *, most_trials: int = 16) -> Case:
    """Draw a space, a command and up to ``most_trials`` trials of every kind, measured and not, of it and of others."""
    space, parameters, facts, sizes = draw(spaces())
    file_keys = {key: value for each in parameters for key, value in each.file_keys.items()}
    files = {"config.json": json.dumps({"run": file_keys})} if file_keys else {}
    words = [word for each in parameters for word in each.words] + (["--config", "config.json"] if files else [])
    alike = draw(st.dictionaries(st.sampled_from(_OBSERVED), st.sampled_from(ODD_VALUES), max_size=2))
    bench = replace(Bench.of(space, parameters, facts, sizes), alike=alike if draw(st.booleans()) else {})
    n_trials = draw(st.sampled_from([0, 1, 3, 6, most_trials // 2, most_trials]))
    seeds = st.integers(0, 2**32)
    chosen = draw(st.lists(st.tuples(st.sampled_from(list(_KINDS)), seeds), min_size=n_trials, max_size=n_trials))
    crowd = draw(st.sampled_from(["", "recorded", "recorded", "without_space", "elsewhere", "imported"]))
    if crowd:  # as many of one kind as it takes to learn from them
        first, n_alike = draw(seeds), draw(st.sampled_from([3, 5, 10, 24]))
        chosen += [(crowd, first + place) for place in range(n_alike)]
    return Case(
        space=space,
        files=files,
        words=tuple(words),
        env={name: text for each in parameters for name, text in each.variables.items()},
        trials=tuple(bench.trial(kind, seed, place) for place, (kind, seed) in enumerate(chosen)),
        **sizes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What trials of a case are made of.

    Args:
        workload: facts of the command.
        configs: legal configs of its space, the user's own first; made up where the space has none.
        parameters: of the space.
        alike: odd values that every launch of the workload observes.
    """

    workload: Workload
    configs: tuple[Config, ...]
    parameters: tuple[Knob, ...]
    alike: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, parameters: Sequence[Knob], facts: Workload, sizes: Mapping[str, int]) -> Bench:
        """Return the bench of a space file and a command of that size."""
        tuned = {each.name for each in parameters}
        world = {"nnodes": sizes["nnodes"]} if "nproc_per_node" in tuned else {"world_size": sizes["nnodes"]}
        if "world_size" in world:
            world = {"world_size": sizes["nnodes"] * sizes["nproc_per_node"]}
        workload = {"program": "train.py", **world, **facts}
        own: Config = {each.name: each.own for each in parameters if each.own is not None}
        configs: list[Config] = [own]
        try:
            space = parse_space(text, where="space.toml").bind(workload=workload, current=own)
            configs += space.sample(12, rng=np.random.default_rng(0))
        except CubicMLError:
            rng = random.Random(0)
            configs += [{each.name: _any_choice(each, rng) for each in parameters if each.choices} for _ in range(6)]
        return cls(workload=workload, configs=tuple(configs), parameters=tuple(parameters))

    def trial(self, kind: str, seed: int, place: int) -> Trial:
        """Return the trial of that ``kind`` that follows from ``seed``, the ``place``-th of its store."""
        rng = random.Random(seed)
        began = BEGAN + timedelta(hours=place)
        config = rng.choice(self.configs)
        plain = Trial(
            trial_id=f"t{place}-{kind}",
            workload=self.workload,
            config=config,
            state=State.COMPLETED,
            observed=self.observed(config, rng),
            measurement=measurement(rng, slowness=1.0 + len(str(config)) % 7),
            started_at=began.isoformat(),
            ended_at=(began + timedelta(minutes=30)).isoformat(),
        )
        return _KINDS[kind](plain, rng)

    def observed(self, config: Config, rng: random.Random) -> dict[str, Value]:
        """Return facts as a recorder sees them inside the job, those of the config among them."""
        seen: dict[str, Value] = {
            "device": DEVICES[0],
            "n_params": 1_000_000,
            "torch_version": "2.9.0",
            "python_version": "3.11.7",
            "precision": "fp32",
            "optimizer": "AdamW",
            "micro_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "device_memory_gib": 80.0,
            "layer_n_params": (1000, 1000, 2000),
            "host": f"node{rng.randrange(3)}",
            "world_size": self.workload.get("world_size", 2),
        }
        seen |= {name: value for name, value in config.items() if name in _STANDARD or rng.random() < 0.3}
        return {name: value for name, value in seen.items() if rng.random() < 0.9} | self.alike


def measurement(rng: random.Random, *, slowness: float = 1.0) -> Measurement:
    """Return what one release or another tells of a run, with every field that it may have; now and then an odd one."""
    speed = 10_000.0 / slowness * rng.lognormvariate(0.0, 0.03)
    speed = rng.choice(ODD_SPEEDS) if rng.random() < 0.06 else speed
    units = rng.choice([{"tokens_per_second"}, {"tokens_per_second", "samples_per_second"}, {"samples_per_second"}])
    rates = {name: speed / (64.0 if name == "samples_per_second" and speed > 1e-300 else 1.0) for name in sorted(units)}
    values: dict[str, object] = {**rates, "peak_memory_gib": _odd(rng, 40.0 / slowness)}
    release = rng.choice(["imported", "logged", "median", "mean", "mean"])
    if release == "imported":
        return Measurement(**_some(values, rng))
    values |= {"steps_counted": rng.choice([1, 5, 100, 10**6]), "warmup_steps": rng.choice([0, 3, 10**6])}
    if release == "logged":
        return Measurement(**values, source="nanogpt")
    step_s = _odd(rng, 0.1)
    values |= {
        "step_time_s": (step_s, step_s, step_s * 1.5 if step_s < 1e300 else step_s),
        "mean_step_time_s": _odd(rng, 0.11),
        "drift": rng.choice([0.0, 0.1, -0.5, 1e300]) if rng.random() < 0.3 else 0.01,
        "share_outside_steps": rng.choice([0.0, 0.2, 1.0]),
        "peak_reserved_gib": _odd(rng, 50.0),
        "allocator_retries": rng.choice([0, 0, 7, 2**60]),
        "statistic": "p50" if release == "median" else "mean",
    }
    if release == "mean":
        values |= {
            "relative_error": _odd(rng, 0.01),
            "evaluation_s": rng.choice([0.0, 12.0, 1e300]),
            "checkpoint_s": rng.choice([0.0, 3.0]),
            "tokens_per_second_overall": _odd(rng, speed),
            "samples_per_second_overall": _odd(rng, speed),
            "is_steady": rng.choice([True, False]),
            "may_include_evaluation": rng.choice([True, False]),
            "other_source": "megatron",
            "other_tokens_per_second": _odd(rng, speed),
            "other_samples_per_second": _odd(rng, speed),
        }
    return Measurement(**_some(values, rng))


def _some(values: Mapping[str, object], rng: random.Random) -> dict[str, object]:
    kept = {name for name in values if name.endswith("_per_second") or name == "statistic"}
    return {name: value for name, value in values.items() if name in kept or rng.random() < 0.85}


def _odd(rng: random.Random, usual: float) -> float:
    return rng.choice([5e-324, 1e-300, 1e-9, 1e9, 1e300, 1.7e308]) if rng.random() < 0.05 else usual


def _without_space(trial: Trial, rng: random.Random) -> Trial:
    """Return it as recorded before there was a space file that declares facts of the workload."""
    known = {name: trial.workload[name] for name in ("program", "world_size") if name in trial.workload}
    declared = {name: value for name, value in trial.workload.items() if name not in known}
    return replace(trial, config={}, workload=known, observed={**trial.observed, **declared})


def _requested(trial: Trial, rng: random.Random) -> Trial:
    return replace(
        trial,
        state=State.PLANNED,
        observed={},
        measurement=None,
        ended_at="",
        launch_id=f"launch-{rng.random()}",
        origin=Origin.TUNE,
    )


def _running(trial: Trial, rng: random.Random) -> Trial:
    return replace(trial, state=State.RUNNING, ended_at="", measurement=rng.choice([None, trial.measurement]))


def _failed(trial: Trial, rng: random.Random) -> Trial:
    state = rng.choice([state for state in State if state.ended and state is not State.COMPLETED])
    kept = trial.measurement if rng.random() < 0.3 else None
    return replace(trial, state=state, measurement=kept, reason="RuntimeError: größe", attempts=rng.choice([1, 1, 3]))


def _imported(trial: Trial, rng: random.Random) -> Trial:
    if rng.random() < 0.3:
        reason = rng.choice(["out_of_memory", "timeout", "unknown"])
        lost = Trial.infeasible(workload=trial.workload, config=trial.config, reason=reason)
        return replace(lost, trial_id=trial.trial_id)
    speed = rng.choice(ODD_SPEEDS) if rng.random() < 0.1 else rng.uniform(10.0, 1e5)
    values = {rng.choice(["tokens_per_second", "samples_per_second"]): speed, "peak_memory_gib": _odd(rng, 20.0)}
    return replace(Trial.completed(workload=trial.workload, config=trial.config, **values), trial_id=trial.trial_id)


def _explored(trial: Trial, rng: random.Random) -> Trial:
    origin = rng.choice([Origin.EXPLORE, Origin.REWRITE, Origin.TUNE])
    return replace(trial, origin=origin, suggestion={"gain": 1.2, "throughput": rng.choice([None, 1e300, "x"])})


def _elsewhere(trial: Trial, rng: random.Random) -> Trial:
    """Return it as of another workload: another program or size, another device, fewer or other facts."""
    workload = {**trial.workload}
    for _ in range(rng.choice([1, 1, 2])):
        change = rng.choice(["program", "world_size", "fact", "drop", "device"])
        if change == "program":
            workload["program"] = rng.choice(["other.py", "größe.py", "-m x.y", 7])
        elif change == "world_size":
            workload["world_size"] = rng.choice([1, 16, 1024, 0, -1, 1.5, "8", True, 2**64, (2, 2)])
        elif change == "fact":
            workload[rng.choice([*workload, "n_layers", "d_model", "seq_len", "größe"])] = rng.choice(ODD_VALUES)
        elif change == "device":
            workload["device"] = rng.choice(DEVICES)
        else:
            workload.pop(rng.choice(list(workload)))
    return replace(trial, workload=workload)


def _odd_config(trial: Trial, rng: random.Random) -> Trial:
    """Return it with values that the space does not know, under its names or others."""
    config = {**trial.config}
    for _ in range(rng.choice([1, 1, 3])):
        name = rng.choice([*config, "unknown", "größe", "sharding_strategy", "layer_n_params"])
        value = config.get(name)
        longer = [value * 2, value[:1], (*value, 1), value[0]] if isinstance(value, tuple) and value else []
        config[name] = rng.choice([*longer, *ODD_VALUES])
    return replace(trial, config=config)


def _odd_facts(trial: Trial, rng: random.Random) -> Trial:
    """Return it with odd values of what was observed: of another release, another device, another kind."""
    observed = {**trial.observed}
    names = [*observed, *trial.config, "n_layers", "d_model", "n_heads", "seq_len", "layer_n_params", "größe", "rows"]
    for _ in range(rng.choice([1, 2, 5])):
        observed[rng.choice(names)] = rng.choice([*ODD_VALUES, *DEVICES])
    return replace(trial, observed=observed)


def _odd_times(trial: Trial, rng: random.Random) -> Trial:
    times = ("", "yesterday", "2026-01-01", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00", "2026-01-01T00:00:00Z")
    return replace(trial, started_at=rng.choice(times), ended_at=rng.choice(times))


_KINDS: dict[str, Callable[[Trial, random.Random], Trial]] = {
    "recorded": lambda trial, _: trial,
    "without_space": _without_space,
    "requested": _requested,
    "running": _running,
    "failed": _failed,
    "imported": _imported,
    "explored": _explored,
    "elsewhere": _elsewhere,
    "odd_config": _odd_config,
    "odd_facts": _odd_facts,
    "odd_times": _odd_times,
}
"""Kind of trial -> what makes it of one of the case's own workload that was recorded under its space."""


def _any_choice(knob: Knob, rng: random.Random) -> Value:
    if knob.entries is None:
        return rng.choice(knob.choices)
    return tuple(rng.choice(knob.choices) for _ in range(knob.entries))


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _literal(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _spelled(value: Value) -> str:
    return str(value)
