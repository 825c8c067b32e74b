"""Drawn trainings: how each is typed, killed and launched again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lib.resumed.scripts import KINDS, script

if TYPE_CHECKING:
    from pathlib import Path

PER_RANK = 16  # samples of an optimizer step
LAYOUTS = ((2, 8), (4, 4), (16, 1))  # micro batch and accumulation as typed
SPACE = """\
objective = "samples_per_second"

[parameters.micro_batch_size]
choices = [1, 2, 4, 8, 16]
{batch}

[parameters.gradient_accumulation_steps]
derive = "global_batch_size / (micro_batch_size * dp_degree)"
{accumulate}
"""
_FLAGS = {
    "batch": ("--batch_size", "--micro_batch_size", "--per_device_train_batch_size", "--bs", "--mbs", "--batch"),
    "accumulate": ("--accumulate", "--gradient_accumulation_steps", "--grad-accum", "--accum_iter", "--acc"),
    "out": ("--out_dir", "--output_dir", "--save_dir", "--checkpoint-dir", "--work_dir", "--run_dir", "--workspace"),
    "steps": ("--steps", "--max_steps", "--train-iters"),
    "switch": ("--resume", "--auto_resume", "--continue-training", "--restart", "--load"),
    "value": ("--resume_from", "--resume", "--resume-from-checkpoint", "--load", "--from_checkpoint", "--ckpt"),
}
_KEYS = {
    "batch": ("train.batch_size", "batch_size", "data.micro_batch"),
    "accumulate": ("train.accumulation", "grad_accum", "trainer.accumulate_grad_batches"),
    "out": ("output_dir", "checkpoint.folder", "run.dir"),
    "resume": ("resume", "train.resume_from", "checkpoint.load", "trainer.from_checkpoint"),
}
_VARIABLES = {"out": ("OUT_DIR", "CHECKPOINT_DIR", "RUN_FOLDER"), "resume": ("RESUME", "RESUME_FROM", "AUTO_RESUME")}
_NAMES = {
    "plain": (("f'checkpoint-{step + 1}.pt'", "*.pt"), ("'last.pt'", "*.pt"), ("f'{step + 1:06d}/state.pt'", "*/*.pt")),
    "per-rank": (("f'step-{step + 1}'", "step-*"), ("'last'", "last"), ("f'ckpt/{step + 1}'", "ckpt/*")),
    "dcp": (("f'step-{step + 1}'", "step-*"), ("f'checkpoints/{step + 1}'", "checkpoints/*")),
    "trainer": (("", "checkpoint-*"),),
    "lightning": (("", "checkpoints/*.ckpt"),),
}
_PLACES = (
    ("interleaved", "(place * world + rank) % 4096"),
    ("shuffled", "order[(place * world + rank) % 4096]"),
    ("in shards", "rank * 2048 + place % 2048"),
)
MODES = ("record", "rewrite", "rewrite", "without us")  # of the first launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One drawn training.

    Args:
        number: of the training.
        kind: of its checkpoints, one of ``KINDS``.
        processes: of the job: 1 is started by ``python``, 2 by torchrun.
        layout: micro batch and accumulation as typed.
        places: purpose -> how the command says it (``flag``, ``key``, ``variable``, ``default``), and the name.
        resume: how the author asks to go on: ``always`` (the script looks), ``switch``, ``value``, ``key`` or
            ``variable``.
        asks: what it is asked with: ``auto``, ``path`` (of the newest checkpoint), or nothing.
        is_asked_first: whether the first launch is asked, too, and finds nothing.
        is_relative: whether the output folder is relative to the folder in which the command is typed.
        first_mode: mode of the first launch, one of ``MODES``.
        end: how the first launch ends: ``SIGKILL``, ``SIGTERM``, ``ended`` (its steps are done), ``part`` (each launch
            makes so many steps more).
        pause_s: seconds between the last step and the signal.
        steps: of the whole training.
        every: steps between checkpoints.
        stop: steps of the first launch.
        parts: of the script, for ``scripts.script``.
        config: ending of the config file; empty without one.
    """

    number: int
    kind: str
    processes: int
    layout: tuple[int, int]
    places: dict[str, tuple[str, str]]
    resume: str
    asks: str
    is_asked_first: bool
    is_relative: bool
    first_mode: str
    end: str
    pause_s: float
    steps: int
    every: int
    stop: int
    parts: dict[str, str]
    config: str

    @property
    def text(self) -> str:
        """One line for people."""
        batch, accumulation = self.layout
        asked = f"{self.resume} {self.places['resume'][1]} {self.asks}" if self.resume != "always" else "always"
        asked = " ".join(asked.split()) + (" from the first launch on" if self.is_asked_first else "")
        form, name = self.places["out"]
        return (
            f"{self.number}: {self.kind}, {self.processes} process{'es' * (self.processes > 1)}, "
            f"{batch} x {accumulation} by {self.places['batch'][0]}, output by {form} {name}".rstrip()
            + f"{' (relative)' * self.is_relative}, goes on: {asked}; first launch {self.first_mode}, {self.end}"
            + f"{' strict' * bool(self.parts['strict'])}, state in {self.parts['counted']}"
        )

    @property
    def script(self) -> str:
        """Text of the script."""
        return script(self.kind, self.parts)

    @property
    def space(self) -> str:
        """Text of the space file."""
        bound = {name: _binding(*self.places[name]) for name in ("batch", "accumulate")}
        return SPACE.format(**bound)

    @property
    def last_checkpoint(self) -> int:
        """Steps that the last checkpoint of the first launch holds."""
        return self.stop if self.end in {"ended", "part"} else self.stop // self.every * self.every

    def command(
        self, folder: Path, *, steps: int, out: Path, goes_on_from: str | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the words of the script and the variables of a launch; its config file is written.

        Args:
            folder: where the command is typed.
            steps: that its words ask for.
            out: output folder.
            goes_on_from: path of a checkpoint; empty for a first launch that is asked to go on; ``None`` for no word.
        """
        folder.mkdir(parents=True, exist_ok=True)
        values: dict[str, object] = {"batch": self.layout[0], "accumulate": self.layout[1], "steps": steps}
        values["out"] = "out" if self.is_relative else str(out)
        if goes_on_from is not None:
            values["resume"] = goes_on_from if self.asks == "path" else self.asks or True
        words, variables, keys = [], {}, dict[str, object]()
        for purpose, value in values.items():
            form, name = self.places[purpose]
            if form == "flag":
                words += [name] if value is True else [name, str(value)]
            elif form == "variable":
                variables[name] = "1" if value is True else str(value)
            elif form == "key":
                section, _, key = name.rpartition(".")
                (keys.setdefault(section, {}) if section else keys)[key] = value  # type: ignore[index]
        if self.config:
            # JSON is YAML, too.
            text = json.dumps(keys, indent=2) if self.config == "json" else _yaml(keys)
            (folder / f"run.{self.config}").write_text(text)
            words += ["--config", f"run.{self.config}"]
        return words, variables


def _yaml(keys: dict[str, object]) -> str:
    import yaml

    return yaml.safe_dump(keys)


def _binding(form: str, name: str) -> str:
    return f'flag = "{name}"' if form == "flag" else f'file = "--config"\nkey = "{name}"'


def trainings(count: int, seed: int, kinds: tuple[str, ...] = KINDS) -> list[Training]:
    """Return ``count`` drawn trainings, as many of each kind."""
    return [
        _training(number, kinds[number % len(kinds)], np.random.default_rng([seed, number])) for number in range(count)
    ]


def _training(number: int, kind: str, rng: np.random.Generator) -> Training:
    resume = str(rng.choice(["always", "always", "switch", "value", "key", "variable"]))
    asks = {"value": ("auto", "path"), "key": ("auto", "path", ""), "variable": ("path", "")}.get(resume, ("",))
    asks = str(rng.choice(asks))
    places = _places(rng, resume)
    end = str(rng.choice(["SIGKILL", "SIGTERM", "SIGKILL", "SIGTERM", "ended", "part" if kind in _TORCH else "ended"]))
    every = int(rng.choice([4, 5, 6]))
    stop = int(rng.integers(every + 1, 3 * every)) if end.startswith("SIG") else 2 * every
    stop += stop % every == 0 and end.startswith("SIG")
    layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    is_config = any(form == "key" for form, _ in places.values())
    name, pattern = _NAMES[kind][int(rng.integers(len(_NAMES[kind])))]
    counts_samples = kind in _TORCH and rng.random() < 0.15
    parts = {
        **_options(places, "yaml" if is_config else ""),
        "every": str(every),
        "name": name,
        "pattern": pattern,
        "is_checkpoint": "path.is_file()" if kind in {"plain", "lightning"} else "path.is_dir()",
        "counted": "samples" if counts_samples else "micro batches",
        "place": "self.given" if counts_samples else "self.given * batch",
        "counts": "batch" if counts_samples else "1",
        "sample": _PLACES[int(rng.integers(len(_PLACES)))][1],
        # Larger micro batches are faster, or smaller ones where the largest is typed.
        "cost": "0.004" if layout[0] < PER_RANK else "1e-4 * batch * batch",
        "strict": "yes" if kind in _TORCH and rng.random() < 0.2 else "",
        "end": "start + steps" if end == "part" else "steps",
    }
    return Training(
        number=number,
        kind=kind,
        processes=int(rng.choice([1, 2])),
        layout=layout,
        places=places,
        resume=resume,
        asks=asks,
        is_asked_first=asks != "path" and resume != "always" and bool(rng.random() < 0.5),
        is_relative=places["out"][0] == "default" or bool(rng.random() < 0.5),
        first_mode=str(rng.choice(MODES)),
        end=end,
        pause_s=float(rng.choice([0.0, 2.0])),
        steps=2 * stop if end == "part" else 5 * every,
        every=every,
        stop=stop,
        parts=parts,
        config=str(rng.choice(["yaml", "json"])) if is_config else "",
    )


_TORCH = ("plain", "per-rank", "dcp")


def _places(rng: np.random.Generator, resume: str) -> dict[str, tuple[str, str]]:
    forms = {name: "key" if rng.random() < 0.2 else "flag" for name in ("batch", "accumulate")}
    forms["steps"] = "flag"
    forms["out"] = str(rng.choice(["flag", "flag", "flag", "key", "variable", "default"]))
    tables = {"flag": _FLAGS, "key": _KEYS, "variable": _VARIABLES}
    places = {
        purpose: (form, str(rng.choice(tables[form][purpose])) if form in tables else "")
        for purpose, form in forms.items()
    }
    if resume in {"switch", "value"}:
        names = [name for name in _FLAGS[resume] if name not in {each for _, each in places.values()}]
        places["resume"] = "flag", str(rng.choice(names))
    elif resume != "always":
        places["resume"] = resume, str(rng.choice(tables[resume]["resume"]))
    return places


def _options(places: dict[str, tuple[str, str]], config: str) -> dict[str, str]:
    """Return the parts of a script that read its options."""
    arguments = ['parser.add_argument("--config", required=True)'] if config else []
    read = {"config": "config = yaml.safe_load(Path(args.config).read_text())" if config else ""}
    defaults = {"batch": "2", "accumulate": "8", "steps": "100", "out": '"out"', "resume": "True"}
    for purpose, default in defaults.items():
        form, name = places.get(purpose, ("default", ""))
        attribute = name.strip("-").replace("-", "_")
        if form == "flag":
            kind = f"type=int, default={default}" if purpose in {"batch", "accumulate", "steps"} else "default='out'"
            kind = "nargs='?', const=True, default=None" if purpose == "resume" else kind
            arguments.append(f'parser.add_argument("{name}", {kind})')
            read[purpose] = f"args.{attribute}"
        elif form == "key":
            section, _, key = name.rpartition(".")
            outer = f'config.get("{section}", {{}})' if section else "config"
            read[purpose] = f'{outer}.get("{key}")'
        elif form == "variable":
            read[purpose] = f'os.environ.get("{name}")'
        else:
            read[purpose] = default
    return {"arguments": "\n".join(arguments), **read}
