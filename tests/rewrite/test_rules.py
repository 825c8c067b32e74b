from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.records.trial import Config, Origin, State, Trial, Value
from torchx_cubicml.rewrite.rules import (
    batch_change_reason,
    can_change_batch,
    changes_training,
    check_batch_size,
    comparable,
    expected_device_hours,
    explored_device_hours,
    explores,
    held,
    hold,
    not_permitted,
    rejection_reason,
    with_fixed_batch,
)
from torchx_cubicml.space import Binding, BindingKind, Parameter, RewriteRules, SearchSpace
from torchx_cubicml.space.toml import parse_space

SPACE = parse_space(
    """
    [workload]
    n_layers = { flag = "--n_layer" }

    [parameters.micro_batch_size]
    choices = [1, 2, 4, 8]
    flag = "--batch_size"

    [parameters.tp_degree]
    choices = [1, 2]
    flag = "--tp"

    [parameters.gradient_accumulation_steps]
    derive = "global_batch_size / (micro_batch_size * dp_degree)"
    flag = "--accumulate"

    [parameters.sharding_strategy]
    choices = ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"]
    per_layer = "n_layers"
    flag = "--sharding"
    """,
    where="space.toml",
)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 4, "n_layers": 3}
CURRENT: dict[str, Value] = {
    "micro_batch_size": 2,
    "tp_degree": 1,
    "gradient_accumulation_steps": 4,
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD", "NO_SHARD"),
}
NAMES = tuple(CURRENT)


def one(name: str, flag: str = "--knob", **more: object) -> Parameter:
    binding = Binding(kind=BindingKind.FLAG, name=flag)
    return Parameter(name=name, choices=(1, 2), binding=binding, **more)


@pytest.mark.parametrize(
    ("name", "flag", "expected"),
    [
        ("precision", "--precision", True),
        ("kind_of_number", "--dtype", True),
        ("width", "--model.hidden-size", True),
        ("learning_rate", "--lr", True),
        ("global_batch_size", "--gbs", True),
        ("micro_batch_size", "--batch_size", False),
        ("gradient_accumulation_steps", "--accumulate", False),
        ("tp_degree", "--tp", False),
        ("sharding_strategy", "--sharding", False),
        ("activation_checkpointing", "--gradient_checkpointing", False),
        ("compile", "--compile", False),
        ("num_workers", "--num_workers", False),
    ],
)
def test_what_changes_the_training_is_known_by_name_or_flag(name: str, flag: str, expected: bool) -> None:
    assert changes_training(one(name, flag)) is expected


def test_another_spelling_of_a_flag_says_as_much() -> None:
    binding = Binding(kind=BindingKind.FLAG, name="-p", aliases=("--dtype",))
    assert changes_training(Parameter(name="knob", choices=(1, 2), binding=binding))


def test_what_changes_the_training_is_held_unless_it_says_that_it_may_change() -> None:
    space = SearchSpace(
        parameters=(one("precision", "--a"), one("lr", "--b", changes_training=True), one("tp_degree", "--c")),
        rewrite=RewriteRules(freeze=("tp_degree",)),
    )
    assert not_permitted(space) == ("precision",)
    assert held(space) == ("precision", "tp_degree")


@settings(max_examples=60)
@given(frozen=st.sets(st.sampled_from(NAMES)), choice=st.integers(0, 10**6), seed=st.integers(0, 99))
def test_no_legal_config_of_a_held_space_moves_a_frozen_parameter(frozen: set[str], choice: int, seed: int) -> None:
    configs = list(SPACE.bind(workload=WORKLOAD, current=CURRENT).configs())
    current = configs[choice % len(configs)]
    bound = hold(SPACE, current, frozen).bind(workload=WORKLOAD, current=current)
    for config in bound.sample(20, rng=np.random.default_rng(seed)):
        full = {**current, **config}
        assert {name: full[name] for name in frozen} == {name: current[name] for name in frozen}
        batch = [c["micro_batch_size"] * c["gradient_accumulation_steps"] / c["tp_degree"] for c in (full, current)]
        assert batch[0] == batch[1]


def test_a_frozen_parameter_stays_where_another_would_make_it_idle() -> None:
    text = '[parameters.tp_degree]\nchoices = [1, 2]\nflag = "--tp"\n'
    text += '[parameters.overlap]\nchoices = [0, 1]\nflag = "--overlap"\ndefault = 0\nwhen = "tp_degree > 1"\n'
    space = parse_space(text, where="space.toml")
    current: Config = {"tp_degree": 2, "overlap": 1}
    bound = hold(space, current, {"overlap"}).bind(workload=WORKLOAD, current=current)
    assert list(bound.configs()) == [current]


def test_a_frozen_value_outside_of_the_space_stays() -> None:
    current: Config = {**CURRENT, "tp_degree": 4, "gradient_accumulation_steps": 16}
    bound = hold(SPACE, current, {"tp_degree"}).bind(workload=WORKLOAD, current=current)
    assert {config["gradient_accumulation_steps"] for config in bound.configs()} == {32, 16, 8, 4}


def test_what_is_frozen_can_leave_no_legal_config() -> None:
    current: Config = {**CURRENT, "gradient_accumulation_steps": 3}
    with pytest.raises(SpaceError, match="gradient_accumulation_steps keeps its value"):
        hold(SPACE, current, {"gradient_accumulation_steps"}).bind(
            workload={**WORKLOAD, "global_batch_size": 32}, current=current
        )


def test_launches_with_another_value_of_what_no_choice_can_say_are_left_out() -> None:
    narrow = hold(SPACE, CURRENT, {"sharding_strategy"})
    alike = Trial.completed(workload=WORKLOAD, config=CURRENT, tokens_per_second=1.0)
    other = replace(alike, trial_id="other", config={**CURRENT, "sharding_strategy": ("NO_SHARD",) * 3})
    elsewhere = replace(other, trial_id="elsewhere", workload={**WORKLOAD, "world_size": 8})
    kept = comparable([alike, other, elsewhere], narrow, workload=WORKLOAD, current=CURRENT)
    assert kept == [alike, elsewhere]
    assert comparable([other], SPACE, workload=WORKLOAD, current=CURRENT) == [other]


def test_the_global_batch_size_is_kept_where_nothing_says_that_it_may_change() -> None:
    free = SearchSpace(parameters=(one("micro_batch_size"), one("tp_degree", "--tp")))
    current: Config = {"micro_batch_size": 1, "tp_degree": 1}
    assert can_change_batch(free, workload=WORKLOAD, current=current)
    bound = with_fixed_batch(free, workload=WORKLOAD, current=current).bind(workload=WORKLOAD, current=current)
    kept = list(bound.configs())
    assert kept == [current, {"micro_batch_size": 2, "tp_degree": 2}]
    for first, second in product((1, 2), repeat=2):
        config: Config = {"micro_batch_size": first, "tp_degree": second}
        assert (batch_change_reason(free, workload=WORKLOAD, current=current, config=config) == "") is (config in kept)


def test_a_batch_that_may_change_changes() -> None:
    free = SearchSpace(parameters=(one("micro_batch_size", changes_training=True),))
    assert not can_change_batch(free, workload=WORKLOAD, current={"micro_batch_size": 1})
    assert not batch_change_reason(
        free, workload=WORKLOAD, current={"micro_batch_size": 1}, config={"micro_batch_size": 2}
    )


def test_a_derived_accumulation_keeps_the_batch_by_itself() -> None:
    assert not can_change_batch(SPACE, workload=WORKLOAD, current=CURRENT)


def test_another_stated_batch_is_refused() -> None:
    check_batch_size(workload={**WORKLOAD, "global_batch_size": 32}, current=CURRENT)
    with pytest.raises(LaunchError, match="states a global batch size of 64, but the command has 32"):
        check_batch_size(workload={**WORKLOAD, "global_batch_size": 64}, current=CURRENT)


@pytest.mark.parametrize(
    ("changes", "rules", "reason"),
    [
        ({}, RewriteRules(), ""),
        ({}, RewriteRules(min_gain=0.5), ""),
        ({}, RewriteRules(min_gain=0.51), "the best predicted gain, +50.0%, is below min_gain, 51.0%"),
        ({"gain_low": 1.0}, RewriteRules(min_gain=0.0), "the best predicted gain, +50.0%, is within the noise"),
        (
            {"probability_to_fit": 0.8},
            RewriteRules(),
            "fits in memory with a probability of only 80%, below min_fit, 90%",
        ),
        ({"probability_to_fit": 0.8}, RewriteRules(min_fit=0.8), ""),
        ({"gain": None, "gain_low": None}, RewriteRules(min_gain=9.0), ""),
    ],
    ids=["good", "just enough", "too little", "noise", "memory", "bold", "own out of memory"],
)
def test_a_suggestion_clears_the_rules_of_the_user(
    changes: dict[str, float | None], rules: RewriteRules, reason: str
) -> None:
    values = {"gain": 1.5, "gain_low": 1.4, "gain_high": 1.6, "probability_to_fit": 1.0, **changes}
    suggestion = Suggestion(config=CURRENT, throughput=1.0, low=0.9, high=1.1, reason="", n_trials=9, **values)
    assert rejection_reason(suggestion, rules).endswith(reason)
    assert bool(rejection_reason(suggestion, rules)) is bool(reason)


def test_about_one_launch_in_ten_explores_and_a_dry_run_says_which() -> None:
    space = replace(SPACE, rewrite=RewriteRules(explore=0.1, explore_budget_device_hours=1.0))
    drawn = [explores(space, workload=WORKLOAD, n_trials=number) for number in range(2000)]
    assert drawn == [explores(space, workload=dict(WORKLOAD), n_trials=number) for number in range(2000)]
    assert 150 < sum(drawn) < 250  # 200 expected, standard deviation 13: false alarm once in 8000 workloads
    other = {**WORKLOAD, "world_size": 8}
    assert drawn != [explores(space, workload=other, n_trials=number) for number in range(2000)]
    assert not any(explores(SPACE, workload=WORKLOAD, n_trials=number) for number in range(100))


def explored(started: str, ended: str = "", **changes: object) -> Trial:
    trial = Trial(
        trial_id=f"{started}-{ended}",
        workload=WORKLOAD,
        config=CURRENT,
        state=State.COMPLETED if ended else State.RUNNING,
        origin=Origin.EXPLORE,
        started_at=started,
        ended_at=ended,
    )
    return replace(trial, **changes)


def test_the_budget_counts_what_explored_and_nothing_else() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    ended = explored("2026-01-01T00:00:00+00:00", "2026-01-01T00:30:00+00:00")
    trials = [
        ended,
        replace(ended, origin=Origin.REWRITE, ended_at="2026-01-01T02:00:00+00:00"),
        replace(ended, workload={**WORKLOAD, "program": "other.py"}),
        explored("2026-01-01T11:45:00+00:00"),
        replace(ended, started_at="", ended_at=""),
    ]
    assert explored_device_hours(trials, program="train.py", now=now) == pytest.approx(4 * (0.5 + 0.25))
    assert expected_device_hours(trials, WORKLOAD) == pytest.approx(4 * 2.0)
    assert expected_device_hours([], WORKLOAD) == 0.0


def test_a_lost_launch_takes_no_more_of_the_budget_than_the_longest_that_ended() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    lost = explored("2026-01-01T00:00:00+00:00")
    ended = replace(explored("2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"), origin=Origin.USER)
    assert explored_device_hours([lost, ended], program="train.py", now=now) == pytest.approx(4.0)
    assert explored_device_hours([lost], program="train.py", now=now) > 1000
