"""An ordinary launch names better options of the scheduler, which it cannot set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.history.history import History
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.choice import advise, apply_rules, other_submission_note
from torchx_cubicml.rewrite.rules import held
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

SPACE = parse_space(
    """
    [parameters.micro_batch_size]
    choices = [1, 2]
    flag = "--batch_size"
    changes_training = true
    [parameters.partition]
    choices = ["fast", "slow"]
    scheduler = "partition"
    """,
    where="space.toml",
)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 1}


def ran(batch: int, partition: str, throughput: float) -> Trial:
    config: dict[str, Value] = {"micro_batch_size": batch, "partition": partition}
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=throughput)


def case(fast: float) -> History:
    trials = [ran(batch, "slow", 100.0 * batch) for batch in (1, 2) for _ in range(3)]
    trials += [ran(2, "fast", fast) for _ in range(3)]
    trials = [replace(each, ended_at=f"2026-01-01T00:00:{at:02d}+00:00") for at, each in enumerate(trials)]
    current: dict[str, Value] = {"micro_batch_size": 1, "partition": "slow"}
    return History(space=SPACE, held=held(SPACE), workload=WORKLOAD, current=current, trials=trials)


def test_a_faster_partition_is_named_and_not_taken() -> None:
    found = case(600.0)
    suggestion = advise(found)
    assert suggestion is not None
    choice = apply_rules(found, suggestion)
    assert choice.rejection_reason == ""
    assert choice.config == {"micro_batch_size": 2, "partition": "slow"}
    note = other_submission_note(found)
    assert note.startswith("the best known config has -cfg partition=fast and a predicted gain of +")
    assert "this launch cannot set the scheduler's options" in note


def test_launches_on_another_partition_do_not_hide_those_on_the_own_one() -> None:
    found = case(600.0)  # the latest ran on the fast partition
    devices = {"slow": "A100", "fast": "H100"}
    trials = [replace(each, observed={"device": devices[str(each.config["partition"])]}) for each in found.trials]
    suggestion = advise(replace(found, trials=trials))
    assert suggestion is not None
    assert suggestion.config == {"micro_batch_size": 2, "partition": "slow"}
    assert "left out" not in suggestion.reason


def test_nothing_is_said_of_a_slower_partition() -> None:
    assert other_submission_note(case(50.0)) == ""
    untuned = replace(SPACE, parameters=SPACE.parameters[:1])
    assert other_submission_note(replace(case(600.0), space=untuned)) == ""
