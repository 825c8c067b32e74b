from __future__ import annotations

import json

from torchx_cubicml.recorder.events.printed_trials import PRINTED_MARK, printed_events
from torchx_cubicml.records.event import fold_events, trial_events
from torchx_cubicml.records.trial import Trial


def printed(trial: Trial) -> str:
    begin, end = trial_events(trial)
    whole = {**begin.to_json(), **end.to_json()}
    return f"{PRINTED_MARK} {json.dumps(whole)}"


def test_printed_trials_are_read_behind_any_prefix() -> None:
    trial = Trial.completed(workload={"program": "a.py"}, config={"tp_degree": 2}, tokens_per_second=10.0)
    events, problems = printed_events(["step 1\n", f"[rank0]: {printed(trial)}\n", "done\n"])
    assert problems == []
    (again,) = fold_events(events)
    assert (again.trial_id, again.workload, again.config) == (trial.trial_id, trial.workload, trial.config)
    assert again.measurement == trial.measurement
    assert again.state is trial.state


def test_damaged_lines_are_named() -> None:
    begin = trial_events(Trial.infeasible(workload={}, config={"a": 1}))[0]
    lines = [f"{PRINTED_MARK} {{", f"{PRINTED_MARK} {json.dumps(begin.to_json())}", f"{PRINTED_MARK} [1]", "[" * 10_000]
    events, problems = printed_events(lines)
    assert events == []
    assert [problem.partition(":")[0] for problem in problems] == ["line 1", "line 2", "line 3"]
    assert "expected an ended event" in problems[1]
