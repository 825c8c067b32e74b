from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.events.printed_trials import PRINTED_MARK
from torchx_cubicml.recorder.events.reporter import Reporter
from torchx_cubicml.recorder.process.assignment import read_assignment
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.event import Event, fold_events
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MEASUREMENT = Measurement(samples_per_second=12.5, steps_counted=6, warmup_steps=2, step_time_s=(0.1, 0.2, 0.3))


def reporter(store: Path, rank: int = 0) -> Reporter:
    contract = Contract(
        store=str(store),
        workload={"program": "train.py"},
        config={"batch_size": 4},
        origin=Origin.TUNE,
        launch_id="launch-1",
        suggestion={"reason": "why not"},
    )
    job = {CONTRACT_VARIABLE: encode_contract(contract), "RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": "2"}
    program = Program(name="train.py", arguments=("--batch", "4", "--token", "hunter2"))
    return Reporter(read_assignment(program, job), "t-1")


def test_the_printed_line_holds_the_trial_of_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_PRINT_TRIAL", "1")
    made = reporter(tmp_path)
    made.started({"world_size": 2})
    made.learn({"optimizer": "SGD"}, None)
    made.measured()
    made.learn({}, MEASUREMENT)
    made.ended(State.COMPLETED, "")
    made.ended(State.USER_ERROR, "too late")
    made.close()
    (stored,) = TrialStore(str(tmp_path))
    assert stored.measurement == MEASUREMENT
    assert stored.observed == {"world_size": 2, "optimizer": "SGD"}
    assert (stored.state, stored.reason, stored.launch_id, stored.attempts) == (State.COMPLETED, "", "launch-1", 1)
    assert stored.arguments == ("--batch", "4", "--token", "***")
    assert (stored.config, stored.origin) == ({"batch_size": 4}, Origin.TUNE)
    line, *outcome = capsys.readouterr().err.splitlines()
    mark, _, text = line.partition(" ")
    assert mark == PRINTED_MARK
    assert outcome[0].startswith("torchx-cubicml: recorded ")
    event = Event.from_json(json.loads(text))
    assert event.attempt == (0, 2)
    (printed,) = fold_events([event])
    for name in ("trial_id", "workload", "config", "observed", "measurement", "state", "launch_id", "suggestion"):
        assert getattr(printed, name) == getattr(stored, name)


def test_another_rank_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(tmp_path, rank=3)
    made.ended(State.OUT_OF_MEMORY, "OutOfMemoryError: CUDA out of memory")
    made.close()
    assert capsys.readouterr().err == ""
    (event,) = TrialStore(str(tmp_path)).events()
    assert (event.writer, event.state) == ("rank3", State.OUT_OF_MEMORY)


def test_a_failing_store_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    made = reporter(tmp_path / "file" / "store")
    made.started({})
    made.measured()
    made.ended(State.COMPLETED, "")
    made.close()
    made_lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in made_lines] == ["torchx-cubicml", f'{PRINTED_MARK} {{"schema"']
    place = tmp_path / "file" / "store"
    assert made_lines[0].startswith(
        f"torchx-cubicml: warning: this launch was not recorded: cannot write to store {place}"
    )
