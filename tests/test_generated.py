"""Every command on generated stores under generated spaces: it answers, or says in a sentence why not.

``make test-generated CASES=2000`` runs so many cases of each. What goes wrong inside a launch is reported on stderr,
and the command runs as typed: there, too, an error that nobody raised on purpose is a defect.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import random
import re
import shutil
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.generated.cases import ODD_NUMBERS, ODD_SPEEDS, ODD_TEXTS, Case, cases, laid_out, measurement
from tests.tune.cluster import FATES, SimulatedCluster, runner_of
from torchx_cubicml import tuner
from torchx_cubicml.advisor.acquisition import ACQUISITIONS
from torchx_cubicml.cli import CubicMLCommand
from torchx_cubicml.cubicrun import plan_launch
from torchx_cubicml.launch.launchers.command_launch import split_options
from torchx_cubicml.predictors import PREDICTORS, CrossWorkloadFeasibility
from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.records.event import trial_events
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.rewrite.rewriter import Options, rewrite_component
from torchx_cubicml.searchers import SEARCHERS
from torchx_cubicml.space.toml import load_space, parse_space
from torchx_cubicml.store import TrialStore, read_trials
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml.records.contract import Contract
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.values import Config

CASES = int(os.environ.get("CUBICML_CASES", "6"))  # of each command
SEED = int(os.environ.get("CUBICML_CASES_SEED", "0"))
_UNMEANT = re.compile(r"\b[A-Z]\w*(Error|Exception|Warning|Interrupt|Iteration|Exit): ")
_RATES = ("throughput", "low", "high", "baseline_throughput", "gain", "gain_low", "gain_high")


def generated(
    *strategies: st.SearchStrategy[object], n_cases: int = CASES
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on so many cases drawn from ``strategies``, the same ones each time."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
        chosen = settings(
            max_examples=n_cases,
            deadline=None,
            database=None,
            suppress_health_check=checks,
            phases=[Phase.generate],  # to shrink a case takes as long as to find hundreds
        )
        return seed(SEED)(chosen(given(*strategies)(test)))

    return decorate


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to."""

    status: int
    out: str
    err: str


@cache
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    CubicMLCommand().add_arguments(made)
    return made


def answer(*words: str) -> Answer:
    """Run ``torchx cubicml`` on ``words`` in this process; what it does not mean to raise comes through."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how) for how in ("strict", "backslashreplace"))
    status = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            CubicMLCommand().run(parser().parse_args(words))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    for stream in (out, err):
        stream.flush()
    found = Answer(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert not _UNMEANT.search(found.err), found.err
    if status == 2:
        lines = found.err.strip().split("\n")  # lines to paste may follow the sentence
        sentences = [line for line in lines if line.startswith("torchx-cubicml: ") or ": error: argument " in line]
        assert len(sentences[-1]) > 30, found.err
    return found


def strictly(text: str) -> object:
    """Return what JSON says; NaN and infinity are none."""

    def refuse(word: str) -> object:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def check_promise(promise: dict[str, object]) -> None:
    for name in _RATES:
        value = promise.get(name)
        assert value is None or (isinstance(value, float) and 0.0 < value < math.inf), (name, promise)
    assert 0.0 <= promise.get("probability_to_fit", 1.0) <= 1.0, promise
    for low, middle, high in (("low", "throughput", "high"), ("gain_low", "gain", "gain_high")):
        if promise.get(middle) is not None:
            assert promise[low] <= promise[middle] <= promise[high], promise


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], object]:
    """Return what makes a new folder for a case, and takes it away afterwards."""
    counter = iter(range(10**9))

    @contextmanager
    def made() -> Iterator[Path]:
        path = tmp_path / f"case{next(counter)}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return made


METHODS = st.tuples(st.sampled_from([None, None, *SEARCHERS]), st.sampled_from([None, None, *ACQUISITIONS])).map(
    lambda names: [
        word for flag, name in zip(("--searcher", "--acquisition"), names, strict=True) if name for word in (flag, name)
    ]
)


@generated(cases(), st.sampled_from(["", "H100", "cpu", "abacus"]), st.booleans(), st.booleans())
def test_explain(folder, case: Case, device: str, has_space: bool, as_json: bool) -> None:
    with folder() as path, laid_out(case, path):
        words = [*(["--device", device] if device else []), *(["--space", "space.toml"] if has_space else [])]
        done = answer("explain", *words, *(["--json"] if as_json else []), "--", *case.component)
        assert done.status in {0, 2}
        if done.status:
            return
        if not as_json:
            assert done.out.startswith("Read from the command, before any launch:")
            return
        found = strictly(done.out)
        for name in ("parameters", "peak_gib", "step_s", "throughput", "mfu"):
            assert found[name] is None or 0.0 < found[name]["low"] <= found[name]["middle"] <= found[name]["high"], name
        assert found["fits"] is None or 0.0 <= found["fits"] <= 1.0
        assert (found["step_s"] is None) == (not found["seconds"])


@generated(cases(), METHODS, st.sampled_from(["1", "2", "5"]), st.booleans())
def test_suggest(folder, case: Case, method: list[str], count: str, as_json: bool) -> None:
    with folder() as path, laid_out(case, path):
        words = ["--space", "space.toml", "--count", count, *method, *(["--json"] if as_json else [])]
        done = answer("suggest", *words, "--", *case.component)
        assert done.status in {0, 2}
        if done.status:
            return
        if not as_json:
            assert done.out.startswith("The next launch would run:")
            return
        found = strictly(done.out)
        space = load_space("space.toml")
        legal = {item.name: set(map(repr, item.choices)) for item in space.parameters if item.choices}
        assert len(found["worth_trying"]) <= int(count)
        for row in found["worth_trying"]:
            check_promise(row)
            for name, value in row["config"].items():
                entries = value if isinstance(value, list) else [value]
                conditional = any(item.name == name and (item.when or item.derive) for item in space.parameters)
                own = row["reason"].startswith("baseline: your config")
                assert own or conditional or set(map(repr, entries)) <= legal[name], (name, value)
        for worth in found["sensitivity"]:
            assert not [value for value in worth.values() if isinstance(value, float) and not math.isfinite(value)]


@generated(
    cases(), st.sampled_from([*PREDICTORS, "own", "memory"]), st.sampled_from(OBJECTIVES), n_cases=max(CASES // 2, 1)
)
def test_predictors(case: Case, name: str, objective: str) -> None:
    """Each on the trials of a case as one table, and on the rows of those trials without a measurement."""
    tuned = {"micro_batch_size": (1, 2, 4), "mode": ("a", "b")} if len(case.trials) % 2 else {}
    history = TrainingTable.from_trials(case.trials, objective=objective, choices=tuned)
    rows = [training_row(trial) for trial in case.trials] + [{}, {"micro_batch_size": 2**64, "device": "größe"}]
    features = history.columns.encode(rows)
    rng = np.random.default_rng(0)
    if name == "memory":
        order = MemoryOrder.of_names(["mode"])
        for fits in (
            CrossWorkloadFeasibility(order=order).fit(history, rng=rng).probability(features, rows),
            *([WorkloadFeasibility(tuned=tuned).fit(history).probability(features, rows)] if len(history.rows) else []),
        ):
            assert ((fits >= 0.0) & (fits <= 1.0)).all()
        return
    make = partial(GaussianProcess, tuned=tuned, optimistic=bool(len(rows) % 2)) if name == "own" else PREDICTORS[name]
    predicted = make().fit(history, rng=rng).predict(features)
    known = ~np.isnan(predicted.throughput)
    if name != "roofline" and np.isfinite(history.throughput).any():
        assert known.all()
    for values in (
        predicted.throughput[known],
        predicted.spread[known],
        predicted.quantile(0.1)[known],
        predicted.quantile(0.99)[known],
    ):
        assert (np.isfinite(values) & (values > 0.0)).all(), values


@generated(
    cases(),
    st.sampled_from(["random", "time", "scale", "workload"]),
    st.lists(st.sampled_from([*PREDICTORS, *PREDICTORS, "nobody"]), max_size=2, unique=True),
    st.sampled_from([[], [], ["--curve"], ["--choose"], ["--objective=samples_per_second"], ["--large=2"]]),
    st.booleans(),
)
def test_evaluate(folder, case: Case, split: str, names: list[str], more: list[str], as_json: bool) -> None:
    with folder() as path, laid_out(case, path):
        asked = ["--predictor", *names] if names else []
        done = answer("evaluate", "--split", split, *asked, *more, *(["--json"] if as_json else []))
        assert done.status in {0, 2}
        if done.status == 0 and as_json:
            found = strictly(done.out)
            for card in found if isinstance(found, list) else [found]:
                assert card["n_train"] > 0
                assert card["n_test"] > 0
                assert card["median_error"] is None or 0.0 <= card["median_error"] < math.inf


@generated(cases(), st.integers(0, 2**32))
def test_history(folder, case: Case, number: int) -> None:
    rng = random.Random(number)
    with folder() as path, laid_out(case, path):
        before = strictly(answer("history", "list", "--json", "--limit", "0").out)
        assert len(before) == len(case.trials)
        listed = answer("history", "list", "--limit", str(rng.choice([-1, 1, 5]))).out
        assert (f"of {len(before)} trials" if before else "is empty: no launch has been recorded in it") in listed
        for name in [*(trial["trial_id"] for trial in before[:2]), "t", "nothing", "größe", ""]:
            done = answer("history", "show", name, *rng.choice([["--json"], []]))
            assert done.status in {0, 2}
        _of_past_days(TrialStore(str(path / "store")), case, rng)
        known = strictly(answer("history", "list", "--json", "--limit", "0").out)
        day = rng.choice(["2026-01-01", "2027-01-01", "1970-01-01", "9999-12-31", "yesterday", "2026-13-01", ""])
        assert answer("history", "compact", "--before", day).status in {0, 2}
        assert strictly(answer("history", "list", "--json", "--limit", "0").out) == known


def _of_past_days(store: TrialStore, case: Case, rng: random.Random) -> None:
    """Add to the store what old recorders wrote, and what no recorder did."""
    for place, trial in enumerate(case.trials):
        for event in trial_events(replace(trial, trial_id=f"old-{trial.trial_id}")):
            written = {**event.to_json(), **rng.choice([{}, {}, {"later": [1]}, {"schema": 99}, {"attempt": [1]}])}
            text = json.dumps(written)
            damaged = text[: rng.randrange(len(text))] if rng.random() < 0.1 else text
            name = f"{place}-{event.sequence}-{event.attempt[1]}-{rng.randrange(10**9)}.json"
            store.folder.publish(rng.choice(["2025-12-31", "2026-02-03"]), name, damaged.encode())


CELLS = st.one_of(
    st.sampled_from(
        ["1", "2", "8", "bf16", "fp32", "true", "NA", "", "1e300", "-5", "7B", "größe", '"', "a,b", "1e-300"]
    ),
    st.sampled_from([str(value) for value in (*ODD_NUMBERS, *ODD_SPEEDS, *ODD_TEXTS)]),
    st.text(max_size=8),
)
COLUMNS = ("n_gpus", "tp", "batch_size", "speed", "state", "when", "peak", "größe", "n_params", "precision")


@generated(
    st.lists(st.lists(CELLS, min_size=len(COLUMNS), max_size=len(COLUMNS)), max_size=12),
    st.lists(st.sampled_from(["ok", "oom", "failed", "OK", ""]), min_size=12, max_size=12),
    st.sampled_from(["tokens_per_second", "tokens_per_second_per_device", "samples_per_second_per_device", "words"]),
    st.lists(
        st.sampled_from(["status", "time", "peak", "damage", "log", "json", "toml", "twice", "proposed", "yes", "map"]),
        unique=True,
    ),
    st.integers(0, 2**32),
)
def test_history_import(
    folder, rows: list[list[str]], states: list[str], unit: str, more: list[str], number: int
) -> None:
    import csv

    rng = random.Random(number)
    with folder() as path, laid_out(EMPTY, path):
        with Path("jobs.csv").open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for row, state in zip(rows, states, strict=False):
                usual = ["8", "2", "4", str(rng.uniform(1.0, 1e6)), state, "2025-03-10", "40"]
                cells = [rng.choice([cell, other]) for cell, other in zip(row, usual, strict=False)]
                writer.writerow([*cells, *row[len(cells) :]])
        if "damage" in more:
            data = Path("jobs.csv").read_bytes()
            Path("jobs.csv").write_bytes(data[: rng.randrange(len(data))] + bytes(rng.randrange(256) for _ in range(3)))
        options = _import_options(more, unit, rng)
        for _ in range(2 if "twice" in more else 1):
            done = answer("history", "import", "jobs.csv", *options, *(["--json"] if "json" in more else []))
            assert done.status in {0, 1, 2}
            if done.status < 2 and "json" in more:
                strictly(done.out)
        if "log" in more:
            _print_trials(Path("job.log"), rng)
            assert answer("history", "import", "--log", "job.log").status in {0, 1}
        _check_list()
        assert answer("evaluate", "--split", "workload", "--predictor", "greybox").status in {0, 2}


EMPTY = Case(space="", files={}, nnodes=1, nproc_per_node=1, words=(), env={}, trials=())
MAPPINGS = (
    'workload = ["n_gpus"]\nparameters = ["tp"]\nthroughput = "speed"\n',
    'workload = {a = "n_gpus"}\nparameters = {b = "tp"}\nthroughput = "speed"\ncompleted = [1]\n',
    'workload = "n_gpus"\nparameters = 3\nthroughput = "speed"\n',
    'parameters = ["tp", "tp"]\nthroughput = "speed"\n',
    'throughput = "speed"\nwrong = 1\n',
    'parameters = ["tp"]\nthroughput = ["speed"]\ncompleted = 3\nstatus = "state"\n',
    "= broken",
)


def _import_options(more: list[str], unit: str, rng: random.Random) -> list[str]:
    options = ["--workload", "n_gpus,n_params", "--parameters", "tp,batch_size,größe,precision"]
    options += ["--throughput", rng.choice(["speed", "speed", "speed", "nothing", "precision"]), "--unit", unit]
    options += ["--status", "state", "--completed", "ok", "--out-of-memory", "oom"] if "status" in more else []
    options += ["--time", "when"] if "time" in more else []
    options += ["--peak-memory-gib", "peak"] if "peak" in more else []
    if "proposed" in more:
        options = ["--fact", "n_layers=4"]
    if "map" in more:
        options += [
            "--map",
            rng.choice(["peak=", "speed=tokens_per_second", "when=x", "größe=size", "none=y", "z"]),
        ]
        options += ["--text", rng.choice(["when", "precision", "state"])]
    if "yes" in more:
        options += ["--yes"]
    if "toml" in more:
        Path("map.toml").write_text(rng.choice(MAPPINGS), encoding="utf-8")
        options += ["--mapping", "map.toml"]
    return options


def _print_trials(path: Path, rng: random.Random) -> None:
    from torchx_cubicml.records.trial import Trial

    lines = ["some output", "CUBICML_TRIAL", "CUBICML_TRIAL {", "CUBICML_TRIAL " + "[" * 2000, "CUBICML_TRIAL 1"]
    for place in range(3):
        trial = Trial.completed(workload={"program": "größe"}, config={"a": place}, tokens_per_second=10.0)
        begin, end = trial_events(replace(trial, trial_id=f"printed-{place}", measurement=measurement(rng)))
        written = {**begin.to_json(), **end.to_json(), **rng.choice([{}, {"event": "started"}, {"state": "none"}])}
        lines.append(f"[rank0] CUBICML_TRIAL {json.dumps(written)} and more")
    path.write_text("\n".join(rng.sample(lines, len(lines))), encoding="utf-8")


def _check_list() -> None:
    n_known = len(strictly(answer("history", "list", "--json", "--limit", "0").out))
    expected = f"{n_known} of {n_known} trials in " if n_known else "is empty: no launch"
    assert expected in answer("history", "list", "--limit", "0").out


@generated(cases(most_trials=0), st.sampled_from(["", "parser", "parser", "none"]))
def test_init(folder, case: Case, script: str) -> None:
    flags = [word for word in case.words if word.startswith("--")]
    with folder() as path, laid_out(case, path):
        if script == "parser" and random.Random(len(flags)).random() < 0.3:  # it is run for its --help
            adds = "".join(f"parser.add_argument({flag!r}, default=1)\n" for flag in dict.fromkeys(flags))
            Path("train.py").write_text(
                f"import argparse\nparser = argparse.ArgumentParser()\n{adds}parser.parse_args()\n"
            )
        if script == "none":
            Path("train.py").unlink()
        done = answer("init", "--", *case.component)
        assert done.status in {0, 2}
        if done.status == 0:
            parse_space(done.out, where="starter.toml")
        assert answer("init", "-o", "new.toml", "--", *case.component).status == done.status
        if done.status == 0:
            assert Path("new.toml").read_text() == done.out
            assert answer("init", "-o", "new.toml", "--", *case.component).status == 2


@generated(cases(), st.sampled_from(["", "", "", "record", "off", "wrong"]))
def test_launch(folder, case: Case, mode: str) -> None:
    with folder() as path, laid_out(case, path):
        options = Options(space="space.toml", store=str(path / "store"), mode=mode)
        launches = [_launched(case, options) for _ in range(2)]
        (first, contract), (second, _) = launches
        assert first == second  # the second is of what was kept
        if contract is not None:
            _check_contract(contract, case)


def _launched(case: Case, options: Options) -> tuple[object, Contract | None]:
    err = io.StringIO()
    with redirect_stderr(err):
        app = rewrite_component(case.component, options)
    assert not _UNMEANT.search(err.getvalue()), err.getvalue()
    (role,) = app.roles
    encoded = role.env.pop(CONTRACT_VARIABLE, "")
    return (role.args, role.env, err.getvalue()), decode_contract(encoded) if encoded else None


def _check_contract(contract: Contract, case: Case) -> None:
    if contract.suggestion is not None:
        check_promise(dict(contract.suggestion))
        space = load_space("space.toml")
        free = {item.name: item for item in space.parameters if item.choices and item.when is None}
        own = set(case.words)
        for name, value in contract.config.items():
            entries = value if isinstance(value, tuple) else (value,)
            if name in free:
                assert all(entry in free[name].choices or str(entry) in own for entry in entries), (name, value)


@generated(cases(), st.sampled_from([[], [], ["--cubicml-mode", "record"], ["--cubicml-mode=wrong"]]), st.booleans())
def test_cubicrun(folder, case: Case, mode: list[str], sized: bool) -> None:
    with folder() as path, laid_out(case, path):
        words = ["--cubicml-space", "space.toml", "--cubicml-store", str(path / "store"), *mode, *case.torchrun]
        given_options, args = split_options(words if sized else [word for word in words if "proc" not in word])
        plan = plan_launch(given_options, args)
        assert not _UNMEANT.search("\n".join(plan.lines)), plan.lines
        assert plan.args
        encoded = plan.env.get(CONTRACT_VARIABLE, "")
        if encoded:
            _check_contract(decode_contract(encoded), case)


@generated(
    cases(most_trials=8),
    METHODS,
    st.lists(
        st.sampled_from(["--rounds", "--target-gain=1.2", "--stop-under=0.5", "--json", "--steps=50"]), unique=True
    ),
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 2)),
    st.integers(0, 2**32),
)
def test_tune(
    folder,
    case: Case,
    method: list[str],
    more: list[str],
    size: tuple[int, int, int],
    number: int,
) -> None:
    launches, parallel, repeats = size
    fates = random.Random(number).choice([("done",), ("done", "done", "oom"), FATES, ("oom",), ("refuses",)])
    cluster = SimulatedCluster(
        seed=number, fates=fates, run_s=(5.0, 20.0), late_s=0.0, measure=partial(_measured, number)
    )
    words = ["--space", "space.toml", "--yes", "--budget", f"{launches} launches", "--parallel", str(parallel)]
    words += ["--repeats", str(repeats), "--scratch", "scratch", *method, *more]
    with folder() as path, laid_out(case, path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "tune", _on(cluster))
        done = answer("tune", *words, "--", *case.component)
        assert done.status in {0, 1, 2}
        if done.status == 0 and "--json" in more:
            strictly(done.out)
        assert len(cluster.jobs) <= launches
        trials, _ = read_trials(str(path / "store"), deadline_s=60.0)
        assert len(trials) <= len(case.trials) + launches


def _measured(number: int, config: Config) -> Measurement:
    return measurement(random.Random(f"{number}{sorted(config.items(), key=str)}"))


def _on(cluster: SimulatedCluster) -> Callable[..., object]:
    """Return ``tune`` on a cluster and by its clock."""
    runner, tune = runner_of(cluster), tuner.tune
    return lambda prepared: tune(prepared, jobs=JobRunner("sim", runner=runner), clock=cluster)


def test_the_cases_are_of_every_kind() -> None:
    """Most are legal, some are refused; most stores have trials that teach, and of every kind there are some."""
    kinds: Counter[str] = Counter()

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @seed(1)
    @given(cases())
    def count(case: Case) -> None:
        kinds.update(trial.trial_id.partition("-")[2] for trial in case.trials)
        kinds["measured"] += sum(trial.measurement is not None for trial in case.trials) > 2
        kinds["bound"] += "[parameters." in case.space

    count()
    assert kinds["measured"] > 20
    assert min(kinds.values()) > 5
    assert len(kinds) == 11 + 2
