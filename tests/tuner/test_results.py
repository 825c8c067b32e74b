"""Results of tunes read back from notes, as tunes write them and as others might."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.comparisons import compare
from torchx_cubicml import Trial
from torchx_cubicml.advisor.comparison import Repeats
from torchx_cubicml.tuner.journal import Note, NoteKind
from torchx_cubicml.tuner.progress import TuneResult
from torchx_cubicml.tuner.results import results_of

TUNE = "tune-0123456789abcdef"


def written(**changes: object) -> Note:
    """Return the note of a finished tune after a journey through JSON, with changes of its result."""
    sides = (
        Repeats(config={"a": 1, "layers": ("x", "y")}, throughputs=(10.0, 11.0), uncertainties=(0.01, 0.02)),
        Repeats(config={"a": 2, "layers": ("x", "x")}, throughputs=(20.0, 21.0), uncertainties=(0.01, 0.02)),
    )
    comparison = compare(*sides, objective="tokens_per_second")
    result = TuneResult(
        comparison=comparison, best=None, launches=4, device_hours=0.5, command=("dist.ddp", "x"), ending="spent"
    )
    facts = json.loads(json.dumps({"result": {**result.to_json(), **changes}}))
    return Note(kind=NoteKind.FINISHED, tune_id=TUNE, time="2026-01-01T00:00:00Z", facts=facts)


def test_a_secret_of_the_command_does_not_reach_the_store() -> None:
    command = ("dist.ddp", "--", "--api_key", "hunter2", "--steps", "3")
    result = TuneResult(comparison=None, best=None, launches=1, device_hours=0.0, command=command, ending="")
    assert result.to_json()["command"] == command
    assert result.to_record()["command"] == ("dist.ddp", "--", "--api_key", "***", "--steps", "3")


def submitted(purpose: str) -> Note:
    facts = {"handle": "slurm://torchx/1", "purpose": purpose}
    return Note(kind=NoteKind.SUBMITTED, tune_id=TUNE, launch_id=f"launch-{purpose}", facts=facts)


def test_a_result_is_what_the_tune_wrote() -> None:
    notes = results_of([submitted("baseline"), submitted("search"), written()])
    (result,) = notes.results
    assert result.comparison is not None
    assert result.comparison.best.config == {"a": 2, "layers": ("x", "x")}
    assert str(result.comparison).startswith("Gain 1.95x (80 % interval: 1.")
    assert result.comparison.claims_gain
    assert (result.launches, result.device_hours, result.command) == (4, 0.5, ("dist.ddp", "x"))
    assert (result.scheduler, result.confidence, result.ending) == ("slurm", None, "spent")
    assert notes.baselines == {"launch-baseline"}


def test_a_trial_is_of_the_tune_that_launched_it() -> None:
    (result,) = results_of([written()]).results
    trial = Trial.completed(workload={}, config={}, tokens_per_second=1.0)
    assert result.made(replace(trial, launch_id="launch-0123456789abcdef-0003"))
    assert not result.made(trial)


@pytest.mark.parametrize(
    "changes",
    [
        {"comparison": 3},
        {"comparison": {"gain": 0.0}},
        {"launches": "4"},
        {"device_hours": None},
        {"command": [1]},
        {"confidence": "high"},
    ],
    ids=repr,
)
def test_a_result_that_is_none_is_left_out(changes: dict[str, object]) -> None:
    assert results_of([written(**changes)]).results == ()


def test_a_tune_that_failed_has_no_result() -> None:
    assert results_of([Note(kind=NoteKind.FINISHED, tune_id=TUNE, facts={"error": "x"})]).results == ()
