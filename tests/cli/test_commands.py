from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from torchx.cli.main import main

from torchx_cubicml import Measurement, State, Trial, TrialStore
from torchx_cubicml.advisor import ProposalMethod, suggest
from torchx_cubicml.cli.tune_display import Display
from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.records.event import Event, EventKind, trial_events
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.tuner import Step, Waiting

ROOT = Path(__file__).resolve().parents[2]
GPT = ("dist.ddp", "-j", "1x2", "--script", "examples/train_gpt.py", "--", "--n_layer", "2", "--batch_size", "2")


@dataclass(frozen=True)
class Done:
    """What a command returned and printed."""

    returncode: int | str | None
    stdout: str
    stderr: str


def torchx(*words: str | Path) -> Done:
    """Run TorchX's command line in this process: its start takes seconds."""
    stdout, stderr = StringIO(), StringIO()
    with chdir(ROOT), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main(["cubicml", *map(str, words)])
        except SystemExit as end:
            return Done(end.code or 0, stdout.getvalue(), stderr.getvalue())
    return Done(0, stdout.getvalue(), stderr.getvalue())


@pytest.fixture(autouse=True)
def default_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "default"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("store"))
    trials = TrialStore(url)
    workload = {"program": "train.py", "world_size": 2}
    for size in range(1, 13):
        trials.add(
            Trial.completed(
                workload=workload,
                config={"micro_batch_size": size},
                tokens_per_second=100.0 * size,
                peak_memory_gib=1.5,
            )
        )
    trials.add(Trial.infeasible(workload=workload, config={"micro_batch_size": 64}))
    return url


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    """Write a script of few flags, and return a command that starts it; the help of the example takes seconds."""
    (tmp_path / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--out_dir', default='out')\n"
        "parser.add_argument('--n_layer', type=int)\nparser.add_argument('--batch_size', type=int)\n"
        "parser.parse_args()\n"
    )
    return (*GPT[:4], str(tmp_path / "train.py"), *GPT[5:])


def test_history_list_is_a_table_and_json(store: str) -> None:
    shown = torchx("history", "list", "--store", store)
    assert shown.returncode == 0, shown.stderr
    assert "13 of 13 trials" in shown.stdout
    listed = torchx("history", "list", "--store", store, "--json")
    trials = json.loads(listed.stdout)
    assert len(trials) == 13
    assert {trial["state"] for trial in trials} == {"completed", "out_of_memory"}
    assert trials == json.loads(torchx("history", "list", "--store", store, "--json", "--limit", "0").stdout)


def test_a_reader_that_goes_away_ends_the_command(store: str) -> None:
    torchx_command = str(Path(sys.executable).with_name("torchx"))
    command = f"{shlex.join([torchx_command, 'cubicml', 'history', 'list', '--json', '--store', store])} | true"
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_history_lists_by_default(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_STORE", store)
    assert torchx("history") == torchx("history", "list")
    assert "13 of 13 trials" in torchx("history").stdout


def test_history_show_takes_the_beginning_of_an_id(store: str) -> None:
    trial = json.loads(torchx("history", "list", "--store", store, "--json").stdout)[0]
    shown = torchx("history", "show", trial["trial_id"][:15], "--store", store, "--json")
    assert json.loads(shown.stdout) == trial
    text = torchx("history", "show", trial["trial_id"], "--store", store)
    assert "workload.program" in text.stdout
    assert "train.py" in text.stdout


def test_history_show_begins_with_the_outcome_and_keeps_digests_back(tmp_path: Path) -> None:
    trial = Trial.completed(workload={"program": "a.py"}, config={"micro_batch_size": 8}, tokens_per_second=9.0)
    digests = {f"program:{name}": f"{name:08x}" for name in range(50)}
    trial = replace(trial, trial_id="job-01234x6789", reason="it went well", digests=digests)
    TrialStore(str(tmp_path / "store")).add(replace(trial, observed={"micro_batch_size": 4}))
    shown = torchx("history", "show", "01234x6789", "--store", tmp_path / "store").stdout.splitlines()
    rows = [(line.split()[0], " ".join(line.split()[1:])) for line in shown if line[0] != " "]
    assert rows[:3] == [("trial", "01234x6789"), ("state", "completed"), ("reason", "it went well")]
    assert [name for name, _ in rows[3:5]] == ["measured", "config"]
    assert rows[4][1] == "batch 8 (observed 4)"
    assert ("digests", "50 of the command's texts (--all)") in rows
    whole = torchx("history", "show", "01234x6789", "--store", tmp_path / "store", "--all").stdout.splitlines()
    assert len(whole) == len(shown) + 49


def test_a_trial_that_is_not_there(store: str, tmp_path: Path) -> None:
    shown = torchx("history", "show", "nothing", "--store", store)
    assert shown.returncode == 2
    assert f"no trial 'nothing' in store {store} (13 trials); see" in shown.stderr
    assert "it is empty" in torchx("history", "show", "nothing", "--store", tmp_path).stderr


def test_an_empty_store_is_called_empty(tmp_path: Path) -> None:
    listed = torchx("history", "list", "--store", tmp_path)
    assert listed == Done(0, f"store {tmp_path} is empty: no launch has been recorded in it\n", "")
    assert torchx("history", "list", "--store", tmp_path, "--json") == Done(0, "[]\n", "")
    assert torchx("evaluate", "--store", tmp_path).returncode == 2


def test_a_store_of_unreadable_objects_is_not_called_empty(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "x.json").write_text("{")
    listed = torchx("history", "list", "--store", tmp_path)
    assert listed.returncode == 0
    assert "skipped 1 unreadable object" in listed.stderr
    for action in ("rounds", "frontier"):
        assert "skipped 1 unreadable object" in torchx("history", action, "--store", tmp_path).stderr
    assert "0 of 0 trials" in listed.stdout


def test_evaluate_prints_report_cards(store: str) -> None:
    done = torchx("evaluate", "--store", store, "--predictor", "greybox", "boosting", "--curve", "--json")
    assert done.returncode == 0, done.stderr
    cards = json.loads(done.stdout)
    assert [card["predictor"] for card in cards] == ["greybox", "boosting"]
    for card in cards:
        assert -1 <= card["tau"] <= 1
        assert card["n_train"] + card["n_test"] >= 12
        assert card["learning_curve"][0]["n_train"] == 10
    refused = torchx("evaluate", "--store", store)
    assert "measured trials are too few, or too alike, to compare predictors" in refused.stdout


def test_trials_measured_in_samples_are_graded_by_samples(tmp_path: Path) -> None:
    trials = TrialStore(str(tmp_path))
    workload = {"program": "train.py", "world_size": 2}
    for size in range(1, 13):
        config = {"micro_batch_size": size}
        trials.add(Trial.completed(workload=workload, config=config, samples_per_second=100.0 * size))
    done = torchx("evaluate", "--store", tmp_path, "--predictor", "boosting", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_test"] > 0


def test_impossible_throughputs_are_named_and_not_graded(tmp_path: Path) -> None:
    trials = TrialStore(str(tmp_path))
    speeds = [100.0 * size for size in range(1, 12)] + [1e300, 1e-300, 1e300]
    for size, speed in enumerate(speeds):
        workload = {"program": "train.py", "world_size": 2}
        trials.add(Trial.completed(workload=workload, config={"micro_batch_size": size + 1}, tokens_per_second=speed))
    done = torchx("evaluate", "--store", tmp_path, "--predictor", "boosting", "--json")
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr == "torchx-cubicml: 3 trials left out: impossible throughput, 1e+300 tokens/s or 1e-300 tokens/s\n"
    )
    card = json.loads(done.stdout)
    assert card["n_train"] + card["n_test"] == 11
    assert card["median_error"] < 2.0


def test_suggest_prints_command_and_reason(tmp_path: Path) -> None:
    done = torchx("suggest", "--space", "examples/gpt.toml", "--store", tmp_path, "--count", "3", "--", *GPT)
    assert done.returncode == 0, done.stderr
    assert "The next launch would run" in done.stdout
    ours = ["cubicml", "--mode", "record", "--space", "examples/gpt.toml", "--store", str(tmp_path)]
    assert (
        " ".join(done.stdout.replace("\\\n", "").split()).count(shlex.join(["torchx", "run", *ours, GPT[0]])) == 1 + 3
    )
    listed = torchx("suggest", "--space", "examples/gpt.toml", "--store", tmp_path, "--json", "--", *GPT)
    found = json.loads(listed.stdout)
    assert not found["next"]["rewritten"]
    assert found["next"]["command"] == ["torchx", "run", *ours, *GPT]
    (row,) = found["worth_trying"]
    assert row["config"]["micro_batch_size"] in {1, 2, 4, 8, 16, 32}
    assert row["command"][: len(ours) + 3] == ["torchx", "run", *ours, "dist.ddp"]
    assert found["sensitivity"] == []  # nothing was measured yet


def test_suggest_shows_the_nearest_measurement(tmp_path: Path) -> None:
    component = ComponentLaunch.parse(GPT[0], GPT[1:])
    workload, current = read_config(component.launch, load_space("examples/gpt.toml"))
    trial = Trial.completed(workload=workload, config=current, tokens_per_second=41_000.0, samples_per_second=40.0)
    TrialStore(str(tmp_path)).add(trial)
    done = torchx("suggest", "--space", "examples/gpt.toml", "--store", tmp_path, "--", *GPT)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if short_id(trial.trial_id) in line]
    assert re.search(r"similar trial: (41,000 tokens|40\.0 samples)/s \(\w+ .+ instead of ", line)


def test_suggest_says_where_time_and_memory_go(tmp_path: Path) -> None:
    component = ComponentLaunch.parse(GPT[0], GPT[1:])
    workload, current = read_config(component.launch, load_space("examples/gpt.toml"))
    trial = Trial.completed(workload=workload, config=current, tokens_per_second=41_000.0, peak_memory_gib=0.5)
    TrialStore(str(tmp_path)).add(trial)
    given = ("suggest", "--space", "examples/gpt.toml", "--store", tmp_path)
    done = torchx(*given, "--", *GPT)
    assert done.returncode == 0, done.stderr
    time, heading, *rows = done.stdout[done.stdout.index("Where the time") :].splitlines()
    assert time.endswith("(estimated from the step of 1 launch; parts are not measured):")
    assert heading.split() == ["your", "config", "proposed", "1"]
    of_time = list(takewhile(lambda row: row.startswith(" "), rows))
    assert [row.split()[0] for row in of_time[:2]] == ["measured", "estimated"]
    assert any(row.startswith("    data parallel") for row in of_time)
    memory = rows[len(of_time)]
    assert memory.startswith("Where the memory of a device goes, in GiB (estimated from the peak of 1 launch")
    found = json.loads(torchx(*given, "--json", "--", *GPT).stdout)["breakdown"]
    own = found["configs"]["your config"]
    micro, rounds = current["micro_batch_size"], current["gradient_accumulation_steps"]
    assert own["measured_step_s"] == pytest.approx(micro * rounds * 2 * workload["seq_len"] / 41_000.0)
    assert sum(own["seconds"].values()) == pytest.approx(own["measured_step_s"], rel=0.05)
    assert own["measured_peak_gib"] == 0.5


def test_suggest_says_why_there_is_no_estimate(store: str, tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text("[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = '--batch_size'\n")
    done = torchx("suggest", "--space", space, "--store", store, "--", *GPT)
    assert done.returncode == 0, done.stderr
    reason = "the formulas, which are for transformers and recommenders, lack n_layers, d_model, seq_len"
    assert f"No estimate of where time and memory go: {reason}" in " ".join(done.stdout.split())


def test_suggest_searches_by_the_method_that_is_named(tmp_path: Path) -> None:
    component = ComponentLaunch.parse(GPT[0], GPT[1:])
    space = load_space("examples/gpt.toml")
    workload, current = read_config(component.launch, space)
    bound = space.bind(workload=workload, current=current)
    store = TrialStore(str(tmp_path))
    trials = [
        Trial.completed(workload=workload, config=config, tokens_per_second=1e4 + 1e3 * place, samples_per_second=10.0)
        for place, config in enumerate(bound.sample(12, rng=np.random.default_rng(0)))
    ]
    for trial in trials:
        store.add(trial)
    named = ("--searcher", "random", "--acquisition", "mean", "--count", "4")
    done = torchx("suggest", "--space", "examples/gpt.toml", "--store", tmp_path, *named, "--json", "--", *GPT)
    assert done.returncode == 0, done.stderr
    found = [row["config"] for row in json.loads(done.stdout)["worth_trying"]]
    asked = {"workload": workload, "current": current, "trials": trials, "count": 4}
    by_name = suggest(space, **asked, method=ProposalMethod(searcher="random", acquisition="mean"))
    assert found == [suggestion.to_json()["config"] for suggestion in by_name]
    assert found != [suggestion.to_json()["config"] for suggestion in suggest(space, **asked)]


def test_init_writes_a_space_that_suggest_reads(tmp_path: Path, command: tuple[str, ...]) -> None:
    space = tmp_path / "gpt.toml"
    done = torchx("init", "-o", space, "--", *command)
    assert done.returncode == 0, done.stderr
    again = torchx("init", "-o", space, "--", *command)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    refused = torchx("suggest", "--space", space, "--store", tmp_path / "store", "--", *command)
    assert refused.returncode == 2
    assert refused.stderr.endswith("/store: the place does not exist\n")
    suggested = torchx("suggest", "--space", space, "--", *command)
    assert suggested.returncode == 0, suggested.stderr
    assert "--out_dir" in space.read_text()
    assert torchx("init", "--", *command).stdout == space.read_text()


def test_tune_asks_before_it_writes_to_the_users_outputs(tmp_path: Path, command: tuple[str, ...]) -> None:
    space = tmp_path / "space.toml"
    batch = '[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = "--batch_size"\nchanges_training = true\n'
    space.write_text(batch)
    for words in (
        command,
        (*command, "--out_dir", "precious"),
    ):  # the script has a destination whether it is typed or not
        done = torchx("tune", "--space", space, "--store", tmp_path / "store", "--", *words)
        assert done.returncode == 2
        assert "--out_dir" in done.stderr
        assert "--yes" in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.launch
def test_ctrl_c_that_reaches_the_display_ends_the_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Display):
        def show(self, step: Step) -> None:
            if isinstance(step, Waiting):
                raise KeyboardInterrupt

    monkeypatch.setattr("torchx_cubicml.cli.tune_display.open_display", Interrupted)
    (tmp_path / "space.toml").write_text(
        'objective = "samples_per_second"\n'
        '[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = "--batch_size"\nchanges_training = true\n'
    )
    options = ("--space", tmp_path / "space.toml", "--store", tmp_path / "store", "--scratch", tmp_path / "scratch")
    quick = ("tests/tune/components.py:quick", "--script", "tests/tune/quick.py", "--", "--batch_size", "1")
    done = torchx("tune", *options, "--yes", "--", *quick, "--seconds", "300")
    assert (done.returncode, "Interrupted" in done.stderr) == (130, True), done.stderr
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert (trial.state, trial.reason) == (State.STOPPED_EARLY, "interrupted by the user")


@pytest.mark.launch
def test_ctrl_c_in_a_tune_ends_the_job_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse, os, time\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--batch_size', type=int)\n"
        "parser.parse_args()\n"
        "open(f'pid{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "space.toml").write_text(
        '[parameters.a]\nchoices = [1, 2]\nflag = "--batch_size"\nchanges_training = true\n'
    )
    words = shlex.split("tune --space space.toml --store store -- dist.ddp -j 1x1 --script train.py -- --batch_size 1")
    tune = subprocess.Popen(["torchx", "cubicml", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    while not ((tmp_path / "pid0").exists() and (tmp_path / "pid0").read_text()):
        assert time.monotonic() < end, "no job starts"
        time.sleep(0.1)
    tune.send_signal(signal.SIGINT)
    _, stderr = tune.communicate(timeout=600)
    assert tune.returncode == 130
    assert "Interrupted" in stderr
    assert "Traceback" not in stderr
    assert not Path(f"/proc/{(tmp_path / 'pid0').read_text()}").exists()
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.state is State.STOPPED_EARLY
    assert trial.reason == "interrupted by the user"


SUGGEST = ("suggest", "--space", "examples/gpt.toml")
BAD = {
    "unknown-protocol": ((*SUGGEST, "--store", "nosuch://x", "--", *GPT), "nosuch"),
    "no-component": ((*SUGGEST, "--"), "give a component after"),
    "unknown-component": ((*SUGGEST, "--", "dist.nothing"), "dist.nothing"),
    "refused-j": ((*SUGGEST, "--", "dist.ddp", "-j", "2y2", "--script", "examples/train_gpt.py"), "2y2"),
    "no-space-file": (("suggest", "--space", "missing.toml", "--", *GPT), "missing.toml"),
    "count": ((*SUGGEST, "--count", "0", "--", *GPT), "--count must be >= 1"),
    "searcher": ((*SUGGEST, "--searcher", "nosuch", "--", *GPT), "reinforce"),
    "acquisition": (("tune", "--space", "examples/gpt.toml", "--acquisition", "best", "--", *GPT), "upper_bound"),
    "start": (("tune", "--space", "examples/gpt.toml", "--start", "random:0", "--", *GPT), "random:N with N from 1"),
    "predictor": (("tune", "--space", "examples/gpt.toml", "--predictor", "oracle", "--", *GPT), "ranking_mlp"),
    "too-large": (
        ("tune", "--space", "examples/gpt.toml", "--searcher", "exhaustive", "--", *GPT[:-4], "--n_layer", "40"),
        "limited to 1000000",
    ),
    "scheduler": (("tune", "--space", "examples/gpt.toml", "-s", "nosuch", "--yes", "--", *GPT), "local_cwd"),
    "scheduler-option": (
        ("tune", "--space", "examples/gpt.toml", "-cfg", "foo=bar", "--yes", "--", *GPT),
        "unknown option 'foo' of scheduler local_cwd; choose from log_dir",
    ),
    "steps": (("tune", "--space", "examples/gpt.toml", "--steps", "-3", "--", *GPT), "--steps must be >= 5, got -3"),
    "budget": (("tune", "--space", "examples/gpt.toml", "--budget", "some", "--", *GPT), "16 launches"),
    "seed": ((*SUGGEST, "--seed", "-1", "--", *GPT), "must be a whole number >= 0"),
    "seed-of-evaluate": (("evaluate", "--seed", "9" * 30), "must be a whole number >= 0"),
    "no-day": (
        ("history", "compact", "--before", "yesterday", "--store", "examples"),
        "--before must be a day such as",
    ),
    **{
        f"no-store-for-{words[0]}-{words[1]}".strip("-"): ((*words, "--store", "examples"), "there is no store at")
        for words in (("history", "list"), ("history", "show", "x"), ("history", "compact"), ("evaluate", "--json"))
    },
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_a_plain_message(case: str) -> None:
    words, expected = BAD[case]
    done = torchx(*words)
    assert done.returncode not in {0, 1}
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


BAD_SPACES = {
    "unknown-key": ("[parameters.a]\nchoises = [1, 2]\nflag = '--batch_size'\n", ("choises", "choices")),
    "flag-not-there": ("[parameters.a]\nchoices = [1, 2]\nflag = '--batch'\n", ("--batch", "--batch_size")),
    "impossible": (
        "[parameters.a]\nchoices = [1, 2]\nflag = '--batch_size'\n[[constraints]]\nrequire = 'a > 2'\n",
        ("a > 2",),
    ),
    "empty": ("", ("parameters",)),
}


@pytest.mark.parametrize("case", BAD_SPACES)
def test_a_bad_space_is_reported_with_place_and_legal_values(case: str, tmp_path: Path) -> None:
    text, expected = BAD_SPACES[case]
    space = tmp_path / "space.toml"
    space.write_text(text)
    done = torchx("suggest", "--space", space, "--", *GPT)
    assert done.returncode == 2
    assert all(word in done.stderr for word in expected), done.stderr
    assert "Traceback" not in done.stderr


def test_history_import_brings_in_a_table_and_a_log_once(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("n_gpus,tp,speed\n8,1,100\n8,2,oops\n8,4,120\n")
    given = ("--workload", "n_gpus", "--parameters", "tp", "--throughput", "speed", "--store", str(tmp_path / "store"))
    done = torchx("history", "import", str(tmp_path / "jobs.csv"), *given)
    assert done.stdout.strip() == "imported 2 trials; 0 already known, 1 lines skipped"
    assert "line 3: speed must be a positive number, got 'oops'" in done.stderr
    assert "2 rows: 2 measured, 0 out of memory" in done.stderr
    assert "the roofline formulas cover 0 of 2 trials; the others lack n_layers (2)" in done.stderr
    (first, _) = TrialStore(str(tmp_path / "store"))
    begin, end = trial_events(replace(first, trial_id="printed"))
    (tmp_path / "job.log").write_text(f"CUBICML_TRIAL {json.dumps({**begin.to_json(), **end.to_json()})}\n")
    for n_new in (1, 0):
        done = torchx(
            "history", "import", "--log", str(tmp_path / "job.log"), "--store", str(tmp_path / "store"), "--json"
        )
        assert json.loads(done.stdout) == {"imported": n_new, "known": 1 - n_new, "problems": []}
    assert len(list(TrialStore(str(tmp_path / "store")))) == 3


def test_history_rounds_shows_each_round(store: str, tmp_path: Path) -> None:
    assert (
        "has no rounds: `tune --predictor NAME --rounds` records them"
        in torchx("history", "rounds", "--store", store).stderr
    )
    trials = TrialStore(str(tmp_path))
    for number, (measured, predicted) in enumerate([(100.0, 0.0), (300.0, 9.0), (200.0, 8.0), (150.0, 7.0)]):
        trial = Trial.completed(
            workload={"program": "train.py", "world_size": 2}, config={"batch": number}, tokens_per_second=measured
        )
        promise = {"round_number": 1, "throughput": predicted} if number else None
        trials.add(replace(trial, started_at=f"2026-01-01T00:0{number}:00+00:00", suggestion=promise))
    shown = torchx("history", "rounds", "--store", tmp_path).stdout
    assert re.search(r"first +1 +1 +100 +100 +100 *\n", shown)
    assert re.search(r"1 +3 +3 +200 +300 +300 +1\.00 +± 1\.00", shown)
    assert "over all rounds: 1.00 (95 % of random orders: ± 1.00)" in shown
    (table,) = json.loads(torchx("history", "rounds", "--json", "--store", tmp_path).stdout)
    assert [(each["number"], each["best_so_far"]) for each in table["rounds"]] == [(0, 100.0), (1, 300.0)]
    assert table["tau"] == 1.0


def test_history_rounds_shows_rates_per_device_hour_as_predicted(tmp_path: Path) -> None:
    for unit, best in (("tokens_per_device_hour", 300.0 * 1800), ("tokens_per_currency", 300.0)):
        trials = TrialStore(str(tmp_path / unit))
        for number, measured in enumerate((300.0, 200.0, 150.0)):
            trial = Trial.completed(
                workload={"program": "train.py", "world_size": 2}, config={"batch": number}, tokens_per_second=measured
            )
            promise = {"round_number": 1, "throughput": 9.0 - number, "objective": unit}
            trials.add(replace(trial, started_at=f"2026-01-01T00:0{number}:00+00:00", suggestion=promise))
        (table,) = json.loads(torchx("history", "rounds", "--json", "--store", tmp_path / unit).stdout)
        assert table["rounds"][0]["best"] == pytest.approx(best)
        assert table["tau"] == (1.0 if unit == "tokens_per_device_hour" else None)


def test_history_rounds_draws_a_store_with_rounds_and_one_without(store: str, tmp_path: Path) -> None:
    done = torchx("history", "rounds", "--store", store, "--out", tmp_path / "plain.html")
    assert done.returncode == 0, done.stderr
    assert (done.stdout, "wrote" in done.stderr) == ("", True)
    assert "Throughput of each launch" in (tmp_path / "plain.html").read_text()
    trials = TrialStore(str(tmp_path / "tuned"))
    for number in range(8):
        trial = Trial.completed(
            workload={"program": "<b>.py", "world_size": 2}, config={"batch": number}, tokens_per_second=100.0 + number
        )
        promise = {"round_number": 1 + number // 6, "throughput": 9.0 + number} if number > 2 else None
        trials.add(replace(trial, started_at=f"2026-01-01T00:0{number}:00+00:00", suggestion=promise))
    done = torchx("history", "rounds", "--store", trials.url, "--out", tmp_path / "tuned.svg")
    assert done.returncode == 0, done.stderr
    assert re.search(r"first +3 +3 +101", done.stdout)
    picture = (tmp_path / "tuned.svg").read_text()
    assert all(f">{text}<" in picture for text in ("&lt;b&gt;.py", "round 1, tau 1.00", "all rounds"))
    refused = torchx("history", "rounds", "--store", trials.url, "--out", tmp_path / "tuned.pdf")
    assert (refused.returncode, "ends in .html, .svg, .png" in refused.stderr) == (2, True)


def test_history_rounds_shows_rates_per_joule_as_measured(tmp_path: Path) -> None:
    trials = TrialStore(str(tmp_path))
    for number, watts in enumerate((100.0, 200.0, 400.0)):
        trial = Trial.completed(workload={"program": "train.py"}, config={"batch": number}, tokens_per_second=1000.0)
        measured = Measurement(tokens_per_second=1000.0, power_watts=watts, power_of="GPUs")
        promise = {"round_number": 1, "throughput": 9.0 - number, "objective": "tokens_per_joule"}
        started = f"2026-01-01T00:0{number}:00+00:00"
        trials.add(replace(trial, measurement=measured, started_at=started, suggestion=promise))
    (table,) = json.loads(torchx("history", "rounds", "--json", "--store", tmp_path).stdout)
    assert (table["objective"], table["rounds"][0]["best"], table["tau"]) == ("tokens_per_joule", 10.0, 1.0)


def test_history_rounds_draws_a_hostile_store(tmp_path: Path) -> None:
    words = ("</script><script>alert(1)</script>", "a\x1b[2J\ud800", "'+alert(1)+'", "${x}")
    predictions = (1e308, float("inf"), -1.0, "9", 10**400, 5.0)
    trials = TrialStore(str(tmp_path / "store"))
    for number, (word, predicted) in enumerate(zip((*words, *words), (*predictions, 1.0, 2.0), strict=True)):
        trial = Trial.completed(
            workload={"program": words[0]}, config={"batch": word}, tokens_per_second=100.0 + number
        )
        promise = {"round_number": (1, 10**30)[number % 2], "throughput": predicted}
        trials.add(replace(trial, started_at=word, suggestion=promise))
    for name in ("rounds.html", "rounds.svg", "rounds.png"):
        done = torchx("history", "rounds", "--store", trials.url, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert "<script>alert" not in (tmp_path / "rounds.html").read_text() + (tmp_path / "rounds.svg").read_text()


def test_history_rounds_shows_each_tune_of_a_workload(tmp_path: Path) -> None:
    trials = TrialStore(str(tmp_path))
    for number in range(4):
        trial = Trial.completed(
            workload={"program": "train.py"}, config={"batch": number}, tokens_per_second=100.0 + number
        )
        promise = {"round_number": 1, "throughput": 9.0} if number % 2 else None
        launch_id = f"launch-00{'ab'[number // 2]}-000{number}"
        started = f"2026-01-01T00:0{number}:00+00:00"
        trials.add(replace(trial, started_at=started, suggestion=promise, launch_id=launch_id))
    tables = json.loads(torchx("history", "rounds", "--json", "--store", tmp_path).stdout)
    assert [each["tune"] for each in tables] == ["launch-00a", "launch-00b"]
    assert [[row["launches"] for row in each["rounds"]] for each in tables] == [[1, 1], [3, 1]]
    shown = torchx("history", "rounds", "--store", tmp_path, "--out", tmp_path / "rounds.html")
    assert "Rounds of train.py, tune 2 of 2, tokens per second" in shown.stdout
    assert ">train.py, tune 1 of 2</h2>" in (tmp_path / "rounds.html").read_text()


def test_history_rounds_counts_optimizer_steps_where_nothing_else_was_measured(tmp_path: Path) -> None:
    trials = TrialStore(str(tmp_path))
    for number, step_s in enumerate((0.5, 0.25, 0.2)):
        trial = Trial.completed(workload={"program": "gan.py"}, config={"workers": number}, tokens_per_second=1.0)
        measured = Measurement(mean_step_time_s=step_s, statistic="mean")
        promise = {"round_number": 1, "throughput": 2.0 + number}
        trials.add(replace(trial, measurement=measured, started_at=f"2026-01-01T00:0{number}", suggestion=promise))
    (table,) = json.loads(torchx("history", "rounds", "--json", "--store", tmp_path).stdout)
    assert (table["objective"], table["rounds"][0]["best"], table["tau"]) == ("steps_per_second", 5.0, 1.0)


def test_history_compact_folds_past_days_and_says_how_many(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for number in range(3):
        event = Event(kind=EventKind.STARTED, trial_id=f"t{number}")
        store.folder.publish("2026-01-01", f"{number}.json", json.dumps(event.to_json()).encode())
    done = torchx("history", "compact", "--store", store.url, "--before", "2026-01-01", "--json")
    assert json.loads(done.stdout) == {"events": 0, "segments": 0}
    done = torchx("history", "compact", "--store", store.url, "--before", "2026-01-02")
    assert done.stdout == f"merged 3 events of {store.url} into 1 segments\n"
    assert [trial.trial_id for trial in store] == ["t0", "t1", "t2"]


def test_unprintable_letters_are_escaped(tmp_path: Path) -> None:
    """A file name that is no UTF-8 is half a surrogate, which no encoding has; some terminals have ASCII alone."""
    trial = Trial.completed(workload={"program": "tr\udcffin.py"}, config={"größe": "🙂"}, tokens_per_second=1.0)
    TrialStore(str(tmp_path)).add(trial)
    shows = [["list"], ["show", trial.trial_id], ["list", "--json"]]
    program = (
        "import sys\nfrom torchx.cli.main import main\n"
        f"for words in {shows}:\n    print('printed:')\n    main(['cubicml', 'history', *words, *sys.argv[1:]])\n"
    )
    for encoding in ("utf-8", "ascii"):
        done = subprocess.run(
            [sys.executable, "-c", program, "--store", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        printed = done.stdout.split("printed:\n")[1:]
        assert len(printed) == 3
        assert all(r"tr\udcffin.py" in each for each in printed[1:])
        assert json.loads(printed[-1])[0]["workload"] == trial.workload
