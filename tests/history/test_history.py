"""Trials as one command sees them: own and others, those with the command's values, and notes."""

from __future__ import annotations

from dataclasses import replace

from torchx_cubicml.history.history import History
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

WORKLOAD = {"program": "train.py", "world_size": 2}
SPACE = parse_space(
    """
    [parameters.micro_batch_size]
    choices = [1, 2]
    flag = "--batch"

    [parameters.sharding_strategy]
    choices = ["FULL_SHARD", "NO_SHARD"]
    flag = "--sharding"
    per_layer = 3
    """,
    where="space.toml",
)
CURRENT = {"micro_batch_size": 1, "sharding_strategy": ("FULL_SHARD", "NO_SHARD", "NO_SHARD")}
TYPED = Trial.completed(workload=WORKLOAD, config=CURRENT, tokens_per_second=1.0)
SHARDED = replace(TYPED, trial_id="sharded", config={**CURRENT, "sharding_strategy": ("NO_SHARD",) * 3})
LARGE = replace(TYPED, trial_id="large", config={**CURRENT, "micro_batch_size": 2})
ELSEWHERE = replace(SHARDED, trial_id="elsewhere", workload={**WORKLOAD, "world_size": 8})


def history_of(*trials: Trial) -> History:
    return History(space=SPACE, workload=WORKLOAD, current=CURRENT, trials=trials)


def test_trials_are_of_the_workload_or_others() -> None:
    history = history_of(ELSEWHERE, TYPED, LARGE)
    assert (history.own, history.others) == ([TYPED, LARGE], [ELSEWHERE])
    assert history.where(lambda trial: trial is not TYPED).own == [LARGE]


def test_launches_with_another_value_that_the_space_no_longer_holds_are_left_out() -> None:
    history = history_of(TYPED, SHARDED, LARGE, ELSEWHERE)
    held = history.holding({"sharding_strategy"})
    assert held.trials == [TYPED, LARGE, ELSEWHERE]
    assert [parameter.name for parameter in held.space.parameters] == ["micro_batch_size"]
    assert history.holding({"micro_batch_size"}).trials is history.trials
    assert history.as_typed(["micro_batch_size"]).trials == [TYPED, SHARDED, ELSEWHERE]
    assert history.holding(()).trials is history.trials


def test_a_value_that_a_launch_lacks_is_another_one() -> None:
    bare = replace(TYPED, config={"micro_batch_size": 1})
    assert history_of(bare).holding({"sharding_strategy"}).trials == []
    assert history_of(replace(bare, config={"micro_batch_size": True})).as_typed(["micro_batch_size"]).trials == []


def test_notes_are_in_the_order_of_their_passes() -> None:
    history = history_of(TYPED).noting("one", "").noting("two", trials=[LARGE])
    assert (history.notes, history.trials) == (("one", "two"), [LARGE])
