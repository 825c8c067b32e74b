"""Output of every sub-command on a generated store: its width on a narrow terminal and in a pipe."""

from __future__ import annotations

import io
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len
from torchx.cli.main import main

from tests.comparisons import compare
from torchx_cubicml import Measurement, State, Trial, TrialStore
from torchx_cubicml.advisor import Study, sensitivity
from torchx_cubicml.advisor.comparison import Repeats
from torchx_cubicml.advisor.pareto_front import Frontier, FrontierPoint
from torchx_cubicml.cli.terminal import open_console
from torchx_cubicml.cli.tune_result import print_result
from torchx_cubicml.tuner import Prepared, TuneRequest, TuneResult, prepare

if TYPE_CHECKING:
    from pathlib import Path

SPACE = """
objective = ["tokens_per_second", "tokens_per_device_hour"]
[workload]
n_layers = { flag = "--n_layer" }
[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
flag = "--batch"
changes_training = true
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
per_layer = 12
flag = "--sharding"
[parameters.activation_checkpointing]
choices = ["none", "full", "selective"]
flag = "--activation_checkpointing"
"""
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--n_layer", type=int, default=12)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--sharding", default="FULL_SHARD")
parser.add_argument("--activation_checkpointing", default="none", help="recompute activations in the backward pass")
parser.parse_args()
"""
COMMAND = (
    *("dist.ddp", "-j", "1x2", "--script", "train_a_language_model.py", "--", "--n_layer", "12"),
    *("--batch", "1", "--sharding", "FULL_SHARD", "--activation_checkpointing", "none"),
)
KINDS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
JOBS = "n_gpus,tensor parallelism,tokens/s,cluster that the job ran on\n" + "".join(
    f"{8 * tp},{tp},{1000 * tp + 7},a-cluster-of-a-long-name-in-the-north\n" for tp in (1, 2, 4)
)


def generated_trials() -> list[Trial]:
    """Return the launches of a tune in rounds, some out of memory, and those of another number of processes."""
    trials = []
    grid = product((1, 2, 4, 8), (0, 4, 8, 12), ("none", "full"))
    for number, (batch, n_replicated, recomputed) in enumerate(grid):
        trial = Trial.completed(
            workload={"program": "train_a_language_model.py", "world_size": 2 + 2 * (number % 2), "n_layers": 12},
            config={
                "micro_batch_size": batch,
                "sharding_strategy": ("NO_SHARD",) * n_replicated + ("FULL_SHARD", "SHARD_GRAD_OP") * 6,
                "activation_checkpointing": recomputed,
            },
            tokens_per_second=1.0,
        )
        trial = replace(trial, config={**trial.config, "sharding_strategy": trial.config["sharding_strategy"][:12]})
        rate = 20_000.0 * batch**0.5 * (1 + n_replicated / 40) * (0.8 if recomputed == "full" else 1.0)
        measured = Measurement(tokens_per_second=rate, steps_counted=30, step_time_s=(0.09, 0.1, 0.12))
        trial = replace(
            trial,
            trial_id=f"local_cwd-train_a_language_model-{number:02d}abcdefgh",
            launch_id=f"launch-0123456789abcdef-{number:04d}",
            started_at=f"2026-01-01T00:{number:02d}:00Z",
            measurement=measured,
            suggestion={"round_number": 1 + number // 8, "throughput": rate * (1 + 0.1 * (number % 3))},
            observed={"device": "H100", "torch_version": "2.9.0+cu129.a.long.local.version", "nproc_per_node": 2},
        )
        if batch == 8 and recomputed == "none":
            trial = replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason="CUDA out of memory: " * 9)
        trials.append(trial)
    return trials


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store, a space file, a script and a table of past jobs."""
    folder = tmp_path_factory.mktemp("width")
    for name, text in (("space.toml", SPACE), ("train_a_language_model.py", SCRIPT), ("jobs.csv", JOBS)):
        (folder / name).write_text(text)
    store = TrialStore(str(folder / "store"))
    for trial in generated_trials():
        store.add(trial)
    return folder


READING = {
    "list": ("history", "list"),
    "show": ("history", "show", "05abcdefgh"),
    "rounds": ("history", "rounds"),
    "frontier": ("history", "frontier"),
    "repeat": ("history", "repeat", "05abcdefgh", "--space", "space.toml", "--", *COMMAND),
    "import, proposed": ("history", "import", "jobs.csv"),
    "export, shown": ("history", "export", "elsewhere", "--anonymous"),
    "explain": ("explain", "--device", "H100", "--space", "space.toml", "--", *COMMAND),
    "suggest": ("suggest", "--space", "space.toml", "--count", "2", "--", *COMMAND),
    "suggest a frontier": ("suggest", "--space", "space.toml", "--frontier", "--", *COMMAND),
    "evaluate": ("evaluate", "--curve"),
    "evaluate two": ("evaluate", "--predictor", "boosting", "roofline"),
    "doctor": ("doctor", "--no-probe", "--space", "space.toml", "--", *COMMAND),
}
WRITING = {
    "import": ("history", "import", "jobs.csv", "--yes"),
    "export": ("history", "export", "exported"),
    "merge": ("history", "merge", "store", "exported", "--into", "merged"),
    "compact": ("history", "compact", "--before", "9999-12-31"),
    "init": ("init", "-o", "starter.toml", "--", *COMMAND),
    "report": ("report", "--format", "json", "--out", "report.json"),
}


def printed(*words: str) -> str:
    """Run a sub-command as in a pipe; return what it wrote to stdout."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), suppress(SystemExit):
        main(["cubicml", *words])
    out.flush()
    return out.buffer.getvalue().decode()


def too_wide(text: str, width: int) -> list[str]:
    """Return the lines that are wider than the terminal, without those of a word that is itself too long."""
    return [
        line
        for line in text.splitlines()
        if cell_len(line) > width and not any(cell_len(word) + 14 > width for word in line.split())
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", READING)
def test_a_reading_command_fits_and_writes_nothing(laid_out: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(laid_out)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(laid_out / "store"))
    before = contents(laid_out)
    for columns, width in (("60", 60), ("80", 80), ("", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        text = printed(*READING[name])
        assert text
        assert too_wide(text, width) == []
    assert contents(laid_out) == before


@pytest.mark.parametrize("columns", ["60", ""])
def test_a_writing_command_fits(laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(laid_out, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(folder / "store"))
    monkeypatch.setenv("COLUMNS", columns)
    for name, words in WRITING.items():
        before = contents(folder)
        assert too_wide(printed(*words), int(columns or 100)) == [], name
        assert contents(folder) != before, name


@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_the_result_of_a_tune_fits(
    laid_out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.chdir(laid_out)
    monkeypatch.setenv("COLUMNS", columns)
    prepared = prepare(
        TuneRequest(
            component=COMMAND[0],
            component_args=COMMAND[1:],
            space="space.toml",
            store=str(laid_out / "store"),
            scheduler="slurm",
            scheduler_args="partition=the-partition-of-this-team,mail-user=someone@example.org",
        )
    )
    print_result(open_console(), tune_result(prepared), prepared)
    text = capsys.readouterr().out
    parts = (
        "Frontier:",
        "your config",
        "Gain ",
        "Probability that",
        "Changing one",
        "device hours",
        "Command to run:",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert too_wide(text, int(columns)) == []
    assert "…" not in text


def tune_result(prepared: Prepared) -> TuneResult:
    """Return the result of a tune whose launches are those of the generated store."""
    workload = {**prepared.workload, "world_size": 2}
    trials = [trial for trial in generated_trials() if trial.workload["world_size"] == 2]
    study = Study.of(prepared.space, workload=workload, current=prepared.current, trials=trials)
    best = max((trial for trial in trials if trial.measurement), key=lambda each: each.measurement.tokens_per_second)
    objectives = ("tokens_per_second", "tokens_per_device_hour")
    points = (
        FrontierPoint(config=best.config, values=(50_000.0, 90_000_000.0), doubt=0.02, launches=3, ratios=(2.5, 2.5)),
        FrontierPoint(config=prepared.current, values=(20_000.0, 36_000_000.0), doubt=0.02, launches=3, is_own=True),
    )
    sides = (
        Repeats(config=prepared.current, throughputs=(20_000.0, 20_400.0), uncertainties=(0.01, 0.01)),
        Repeats(config=best.config, throughputs=(50_000.0, 50_700.0), uncertainties=(0.01, 0.01)),
    )
    return TuneResult(
        comparison=compare(*sides, objective=objectives[0]),
        best=None,
        launches=16,
        device_hours=3.2,
        command=COMMAND,
        confidence=0.93,
        sensitivities=tuple(sensitivity(study)),
        others_measured=12,
        refused=("sharding_strategy stays as the script sets it: " + "no FSDP module is wrapped " * 5,),
        set_aside={"activation_checkpointing": "RuntimeError: the module has no layers " * 4},
        values_set_aside={"batch 8, checkpointing none": "CUDA out of memory: " * 9},
        ending="16 of 16 launches, and the expected gain of one more is below 1 % of the best",
        scheduler_args=prepared.request.scheduler_args,
        frontier=Frontier(objectives=objectives, points=points),
    )


def test_a_narrow_table_keeps_its_numbers(laid_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(laid_out)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(laid_out / "store"))
    shown = {}
    for columns in ("60", "80", "", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = printed(*READING["suggest"]).splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("Changing one parameter"))
        headings, _, *rows = lines[start + 1 : lines.index("", start)]
        assert headings.split()[:3] == ["parameter", "value", "predicted"]
        assert ("interval" in headings) is (columns in {"", "200"})
        numbers = [re.findall(r"\d\.\d\dx|\b1x", re.sub(r"[\d.]+x to [\d.]+x", "", row)) for row in rows]
        shown[columns] = [row for row in numbers if row]  # a value may take several lines
    assert shown["60"] == shown["80"] == shown[""] == shown["200"]
    assert len(shown["200"]) > 9


@pytest.mark.parametrize("columns", ["60", "80", "100", "140"])
@pytest.mark.parametrize("shown", ["nt0tvkbgrk{}", "local_cwd-train_{}-sameword"])
def test_the_list_cuts_neither_an_id_nor_a_throughput(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str, shown: str
) -> None:
    """Ids of one ending are shown whole; a throughput that is too long for its line goes on in the next one."""
    store = TrialStore(str(tmp_path / "store"))
    loaded = {"host_cpus": 2, "other_busy_cpus": 1.9, "idle_cpus": 0.0}
    for number, trial in enumerate(generated_trials()[:3]):
        assert trial.measurement is not None
        rough = replace(trial.measurement, relative_error=0.25, is_steady=False)
        trial_id = f"{'' if '-' in shown else 'local_cwd-train-'}{shown.format(number)}"
        store.add(replace(trial, trial_id=trial_id, measurement=rough, observed={**trial.observed, **loaded}))
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", columns)
    text = printed("history", "list")
    assert too_wide(text, int(columns)) == []
    assert all(shown.format(number) in text for number in range(3))
    assert "config" in text
    assert [text.count(word) for word in ("tokens/s", "steady", "crowded")] == [3, 3, 3]


@pytest.mark.parametrize("columns", ["80", "100", "200"])
def test_the_list_cuts_no_word_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for number, program in enumerate(("train.py", "train.py", "other.py")):
        same = {f"parameter_{index}": "a value" for index in range(9)}
        config = {**same, "micro_batch_size": 8, "last": f"value-{number}-" + "x" * 20}
        trial = Trial.completed(workload={"program": program}, config=config, tokens_per_second=1.0)
        store.add(replace(trial, observed={"micro_batch_size": 4}))
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", columns)
    text = "".join(printed("history", "list").split())
    assert "…" not in text
    assert "program" in text
    assert [text.count(word) for word in ("train.py", "other.py", "batch8(observed4)")] == [2, 1, 1]
    assert text.count("parameter_0avalue") == 1
    alike = "".join(printed("history", "list", "--program", "train.py").split())
    assert alike.count("train.py") == 1
    assert "thenewestfirst;programtrain.pytrial" in alike
