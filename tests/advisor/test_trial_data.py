from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor import best_known
from torchx_cubicml.advisor.trial_data import (
    ConfigOutcome,
    are_facts_seen,
    constant_values,
    drop_leaking_facts,
    informative_trials,
    latest_observed,
    leaking_facts,
    misreported_facts,
    narrowed,
    nearest_trials,
    outcomes_by_config,
    pinned_choices,
    with_choices,
)
from torchx_cubicml.history.history import History
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

SPACE = parse_space(
    """
    [workload]
    n_layers = { flag = "--n_layer" }

    [parameters.micro_batch_size]
    choices = [1, 2, 4, 8]
    flag = "--batch_size"

    [parameters.sharding_strategy]
    choices = ["FULL_SHARD", "NO_SHARD"]
    per_layer = "n_layers"
    flag = "--sharding"
    """,
    where="space.toml",
)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2, "n_layers": 2}


def config(batch: int, strategy: str = "FULL_SHARD") -> dict[str, Value]:
    return {"micro_batch_size": batch, "sharding_strategy": (strategy, strategy)}


def asked(batch: int, *, seen: int | None = None, speed: float = 1000.0) -> Trial:
    """A launch under the space file."""
    trial = Trial.completed(workload=WORKLOAD, config=config(batch), tokens_per_second=speed)
    return replace(trial, observed={**config(seen or batch), "n_layers": 2, "device": "cpu"})


def bare(batch: int, *, speed: float = 1000.0, n_layers: int = 2, **observed: Value) -> Trial:
    """A launch before there was a space file: program and size declared, all else seen."""
    trial = Trial.completed(workload={"program": "train.py", "world_size": 2}, config={}, tokens_per_second=speed)
    return replace(trial, observed={**config(batch), "n_layers": n_layers, "device": "cpu", **observed})


def test_the_fastest_launch_may_predate_the_space_file() -> None:
    current = config(2)
    trials = [asked(2), asked(2), asked(2), *(bare(8, speed=3000.0) for _ in range(3))]
    best = best_known(SPACE, workload=WORKLOAD, current=current, trials=trials)
    assert best is not None
    assert best.config == config(8)
    assert best.gain == pytest.approx(3.0, rel=0.2)
    alone = best_known(SPACE, workload=WORKLOAD, current=current, trials=trials[:3])
    assert alone is not None
    assert alone.config == current


def test_observed_values_never_enter_a_command() -> None:
    """It must be one of the space's own choices."""
    hostile = replace(bare(8, speed=9e9), observed={**bare(8).observed, "micro_batch_size": "$(id)"})
    best = best_known(SPACE, workload=WORKLOAD, current=config(2), trials=[asked(2), hostile])
    assert best is not None
    assert best.config == config(2)


@pytest.mark.parametrize(
    ("fields", "decided", "tried"),
    [
        ({}, False, False),
        ({"measured": (1.0,)}, True, True),
        ({"out_of_memory": True}, True, True),
        ({"open": True}, True, False),
        ({"failed": True}, True, True),
        ({"had_error": True}, False, True),
        ({"refuted": True}, True, True),
    ],
    ids=lambda value: "+".join(value) or "nothing" if isinstance(value, dict) else None,
)
def test_each_outcome_decides_or_tries_its_config(fields: dict[str, object], decided: bool, tried: bool) -> None:
    outcome = ConfigOutcome(
        **{"config": {}, "row": b"", "measured": (), "out_of_memory": False, "open": False, "failed": False, **fields}
    )
    assert (outcome.is_decided, outcome.tried) == (decided, tried)


def outcome_of(*trials: Trial) -> ConfigOutcome:
    space = SPACE.bind(workload=WORKLOAD, current=config(1))
    (found,) = outcomes_by_config(space, trials, {}).values()
    return found


def ended(state: State, **fields: object) -> Trial:
    return Trial(trial_id=str(state), workload=WORKLOAD, config=config(2), state=state, **fields)


def test_measurements_of_a_config_are_in_ascending_order() -> None:
    runs = [
        ended(
            State.COMPLETED,
            measurement=Measurement(tokens_per_second=speed, relative_error=error),
        )
        for speed, error in ((300.0, 0.3), (100.0, 0.1), (200.0, 0.2))
    ]
    runs = [replace(run, trial_id=name) for run, name in zip(runs, "cab", strict=True)]
    found = outcome_of(*runs)
    assert found.measured == (100.0, 200.0, 300.0)
    assert found.trial_ids == ("a", "b", "c")
    assert found.uncertainties == (0.1, 0.2, 0.3)
    assert not found.failed


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([State.RUNNING], {"open"}),
        ([State.PLANNED, State.COMPLETED], {"open", "failed"}),
        ([State.OUT_OF_MEMORY], {"out_of_memory"}),
        ([State.TIMEOUT], {"failed"}),
        ([State.USER_ERROR], {"had_error"}),
        ([State.USER_ERROR, State.UNKNOWN], {"had_error", "failed"}),
        ([State.INFRASTRUCTURE] * 3, set()),
    ],
    ids=str,
)
def test_states_of_its_launches_make_the_outcome_of_a_config(states: list[State], expected: set[str]) -> None:
    found = outcome_of(*map(ended, states))
    assert {name for name in ("open", "out_of_memory", "failed", "had_error") if getattr(found, name)} == expected


def test_a_measured_failure_is_no_error() -> None:
    """It ended with an error after its measurement, so that nothing is left to learn."""
    found = outcome_of(ended(State.USER_ERROR, measurement=Measurement(tokens_per_second=9.0)))
    assert (found.measured, found.had_error, found.failed) == ((9.0,), False, False)


def rewritten(name: str, *, day: int, state: State = State.USER_ERROR, **fields: object) -> Trial:
    """A launch that ran its config as a rewritten command."""
    return replace(ended(state, **fields), trial_id=name, started_at=f"2026-01-0{day}T00:00:00+00:00")


def as_typed(first: Trial, state: State = State.COMPLETED, **fields: object) -> Trial:
    """Its second attempt, as typed."""
    return replace(
        first, trial_id=f"{first.trial_id}-as-typed", config=config(1), state=state, **{"measurement": None, **fields}
    )


def outcome_of_rewritten(*trials: Trial) -> ConfigOutcome:
    space = SPACE.bind(workload=WORKLOAD, current=config(1))
    by_batch = {each.config["micro_batch_size"]: each for each in outcomes_by_config(space, trials, {}).values()}
    assert not by_batch[1].refuted, "the second attempt says nothing against its own config"
    return by_batch[2]


MEASURED = Measurement(tokens_per_second=9.0)


@pytest.mark.parametrize(
    ("state", "measurement", "refuted"),
    [
        (State.COMPLETED, None, True),
        (State.USER_ERROR, MEASURED, True),
        (State.USER_ERROR, None, False),
        (State.RUNNING, None, False),
    ],
    ids=["completed", "measured", "failed too", "still unknown"],
)
def test_a_config_is_refuted_where_the_typed_one_then_ran(
    state: State, measurement: Measurement | None, refuted: bool
) -> None:
    failed = rewritten("t-1", day=1)
    found = outcome_of_rewritten(failed, as_typed(failed, state, measurement=measurement))
    assert (found.refuted, found.can_run, found.is_decided) == (refuted, not refuted, refuted)


def test_steps_before_the_failure_do_not_clear_a_config() -> None:
    failed = rewritten("t-1", day=1, measurement=MEASURED)
    found = outcome_of_rewritten(failed, as_typed(failed))
    assert (found.measured, found.refuted) == ((9.0,), True)


@pytest.mark.parametrize(
    ("day", "measurement", "refuted"),
    [(1, MEASURED, True), (3, MEASURED, False), (3, None, True)],
    ids=["measured before", "measured later", "later, but not measured"],
)
def test_a_later_measurement_clears_a_config(day: int, measurement: Measurement | None, refuted: bool) -> None:
    failed = rewritten("t-1", day=2)
    other = rewritten("t-2", day=day, state=State.COMPLETED, measurement=measurement)
    for trials in ([failed, other], [other, failed]):
        found = outcome_of_rewritten(*trials, as_typed(failed))
        assert (found.refuted, found.can_run) == (refuted, not refuted)


def test_no_measurement_clears_a_config_that_ran_out_of_memory() -> None:
    failed = rewritten("t-1", day=1, state=State.OUT_OF_MEMORY)
    other = rewritten("t-2", day=2, state=State.COMPLETED, measurement=MEASURED)
    found = outcome_of_rewritten(failed, as_typed(failed), other)
    assert (found.refuted, found.out_of_memory, found.can_run) == (False, True, False)


def test_a_config_that_fails_once_more_is_refuted_once_more() -> None:
    first, again = rewritten("t-1", day=1), rewritten("t-3", day=3)
    good = rewritten("t-2", day=2, state=State.COMPLETED, measurement=MEASURED)
    assert not outcome_of_rewritten(first, as_typed(first), good, again).refuted, "it did not run as typed then"
    assert outcome_of_rewritten(first, as_typed(first), good, again, as_typed(again)).refuted


def test_a_refuted_config_is_not_the_best_known() -> None:
    fast = replace(asked(2, speed=9000.0), trial_id="t-1", started_at="2026-01-01T00:00:00+00:00")
    trials = [asked(1), asked(1), fast]
    second = replace(asked(1), trial_id="t-1-as-typed")
    arguments = {"workload": WORKLOAD, "current": config(1)}
    best = best_known(SPACE, trials=trials, **arguments)
    assert best is not None
    assert best.config == config(2)
    best = best_known(SPACE, trials=[*trials, second], **arguments)
    assert best is not None
    assert best.config == config(1)


def test_a_config_that_is_illegal_now_has_no_outcome() -> None:
    rule = parse_expression("micro_batch_size < 2", where="constraints")
    space = replace(SPACE, constraints=(rule,)).bind(workload=WORKLOAD, current=config(1))
    assert outcomes_by_config(space, [asked(2)], {}) == {}


def test_a_fact_that_nothing_sets_leaks_the_target() -> None:
    trials = [bare(1, memory=each, device=device, mode="same") for each, device in ((1, "cpu"), (2, "gpu"))]
    assert leaking_facts(trials, {"micro_batch_size"}) == {"memory"}  # the device is known beforehand
    assert leaking_facts(trials, {"memory"}) == set()
    assert leaking_facts([bare(1), bare(2)], set()) == {"micro_batch_size"}


def test_a_fact_unlike_its_request_is_misreported() -> None:
    names = {"micro_batch_size": "micro_batch_size", "sharding_strategy": "seen_strategy"}
    assert misreported_facts([asked(2)], names) == set()
    assert misreported_facts([asked(2), asked(4, seen=2)], names) == {"micro_batch_size"}
    assert misreported_facts([bare(2)], names) == set()  # nothing was requested
    odd = replace(asked(2), observed={"seen_strategy": "other"})
    assert misreported_facts([odd], names) == {"seen_strategy"}


def test_the_latest_observation_of_each_fact_is_kept() -> None:
    late, early = (
        replace(bare(1, mode=mode), started_at=f"2026-01-0{day}T00:00:00+00:00")
        for mode, day in (("new", 2), ("old", 1))
    )
    assert latest_observed([late, replace(early, observed={**early.observed, "gone": 1})])["mode"] == "new"
    assert latest_observed([late, replace(early, observed={**early.observed, "gone": 1})])["gone"] == 1


def test_a_pinned_parameter_keeps_the_users_choice() -> None:
    space = SPACE.bind(workload=WORKLOAD, current=config(1))
    both = {"micro_batch_size", "sharding_strategy"}
    assert pinned_choices(space, config(4, "NO_SHARD"), both) == {
        "micro_batch_size": 4,
        "sharding_strategy": "NO_SHARD",
    }
    assert pinned_choices(space, config(4), {"micro_batch_size"}) == {"micro_batch_size": 4}
    assert pinned_choices(space, config(3), both) == {"sharding_strategy": "FULL_SHARD"}
    assert pinned_choices(space, {"sharding_strategy": ("FULL_SHARD", "NO_SHARD")}, both) == {}
    assert pinned_choices(space, {"sharding_strategy": ("NO_SHARD",)}, both) == {"sharding_strategy": "NO_SHARD"}
    kept = narrowed(space, {"micro_batch_size": 4})
    assert [item.choices for item in kept.parameters] == [(4,), ("FULL_SHARD", "NO_SHARD")]


def test_a_pinned_choice_replaces_each_layers_entry() -> None:
    pinned = {"micro_batch_size": 1, "sharding_strategy": "NO_SHARD", "other": 5}
    assert with_choices({**config(4), "else": 7}, pinned) == {**config(1, "NO_SHARD"), "else": 7}


def test_a_few_trials_are_all_taken() -> None:
    trials = [asked(batch) for batch in (1, 2)]
    assert nearest_trials(trials, WORKLOAD, count=2) == trials
    assert nearest_trials(trials, {}, count=1) == [max(trials, key=lambda each: each.trial_id)]


def test_every_fact_of_a_workload_was_declared_by_some_other() -> None:
    trials = [replace(asked(1), workload=facts) for facts in ({"a": 1, "b": 2}, {"a": 3, "b": 4})]
    assert are_facts_seen({"a": 1, "b": 4}, trials)
    assert not are_facts_seen({"a": 1, "b": 5}, trials)
    assert not are_facts_seen({"a": 1, "b": 2}, trials)  # its own trials do not count


def of_workload(facts: dict[str, Value], *, at: str = "", state: State = State.COMPLETED) -> Trial:
    trial = Trial.completed(workload=facts, config=config(1), tokens_per_second=1.0)
    return replace(trial, ended_at=at and f"2026-01-{at}", state=state)


def test_shared_facts_count_and_not_all_facts() -> None:
    near, far = of_workload({"a": 1}), of_workload({"b": 1, "c": 2, "d": 3}, at="09")
    assert nearest_trials([near, far], {"a": 1, "e": 5}, count=1) == [near]
    assert nearest_trials([far, near], {"a": 1, "e": 5}, count=1) == [near]


def test_of_equally_near_trials_the_latest_are_taken() -> None:
    first, third, fourth = (of_workload({"a": 1}, at=day) for day in ("01", "03", "04"))
    second = replace(of_workload({"a": 1}), started_at="2026-01-02")  # under way
    assert nearest_trials([fourth, second, first, third], {"a": 1}, count=3) == [second, third, fourth]
    assert nearest_trials([second, first], {"a": 1}, count=1) == [second]


@pytest.mark.parametrize(
    ("measured", "lost", "count", "expected"),
    [
        (4, 8, 4, (2, 2)),  # the nearest are four failures: two give way
        (4, 8, 5, (2, 3)),
        (1, 8, 4, (1, 3)),  # no more were measured
        (4, 8, 12, (4, 8)),  # all of them
        (1, 8, 20, (1, 8)),
    ],
)
def test_failures_make_room_for_measured_trials(
    measured: int, lost: int, count: int, expected: tuple[int, int]
) -> None:
    far = [of_workload({"a": 2}, at=f"{day + 1:02}") for day in range(measured)]
    near = [Trial.infeasible(workload={"a": 1}, config=config(1)) for _ in range(lost)]
    found = informative_trials([*far, *near], {"a": 1}, count=count)
    assert (sum(trial in far for trial in found), sum(trial in near for trial in found)) == expected
    assert [trial for trial in found if trial in far] == far[-expected[0] :]


@pytest.mark.parametrize(("measured", "kept"), [(2, 2), (3, 3), (1, 2)], ids=["half", "more than half", "less"])
def test_the_nearest_stay_if_half_are_measured(measured: int, kept: int) -> None:
    near = [of_workload({"a": 1}) for _ in range(measured)]
    near += [Trial.infeasible(workload={"a": 1}, config=config(1)) for _ in range(4 - measured)]
    far = [of_workload({"a": 2}) for _ in range(9)]
    found = informative_trials([*far, *near], {"a": 1}, count=4)
    assert sum(trial.measurement is not None for trial in found) == kept
    assert sum(trial in far for trial in found) == kept - measured


@pytest.mark.parametrize("fact", ["device", "torch_version", "python_version", "scheduler"])
def test_a_fact_of_the_environment_may_change(fact: str) -> None:
    assert leaking_facts([bare(1, **{fact: name}) for name in ("old", "new")], {"micro_batch_size"}) == set()


def test_constant_values_are_those_of_all_trials() -> None:
    trials = [bare(1, mode="same", other=1), bare(2, mode="same", other=2)]
    assert constant_values(trials, {"mode", "other", "absent"}, {}) == {"mode": "same"}
    assert constant_values(trials, set(), {}) == {}
    assert constant_values([*trials, bare(2)], {"mode"}, {}) == {"mode": "same"}  # one did not observe it


def test_a_constant_value_is_the_observed_one() -> None:
    trial = replace(asked(4), config={"batch": 4}, observed={"micro_batch_size": 8})
    assert constant_values([trial], {"batch"}, {"batch": "micro_batch_size"}) == {"batch": 8}
    assert constant_values([trial], {"batch"}, {}) == {"batch": 4}


OBSERVED_AS = parse_space(
    """
    [parameters.batch]
    choices = [1, 2]
    flag = "-b"
    observe = "micro_batch_size"

    [parameters.shards]
    choices = ["FULL_SHARD", "NO_SHARD"]
    flag = "-s"
    observe = "sharding_strategy"
    """,
    where="space.toml",
)


def of_two(batch: int, shards: str, *, seen: int, program: str = "train.py", **observed: Value) -> Trial:
    facts = {"program": program, "world_size": 2}
    trial = Trial.completed(workload=facts, config={"micro_batch_size": batch, "shards": shards}, tokens_per_second=1.0)
    observed = {"micro_batch_size": seen, "sharding_strategy": "NO_SHARD", "n_params": 7, "device": "cpu", **observed}
    return replace(trial, observed=observed)


def test_clean_trials_lack_what_a_launch_learns_too_late() -> None:
    """The batch is split over ranks, all shards run as none, and the peak is known after the run alone."""
    own = [of_two(1, "FULL_SHARD", seen=2, peak=1.0), of_two(1, "NO_SHARD", seen=2, peak=2.0)]
    own.append(of_two(2, "NO_SHARD", seen=4, peak=2.0))
    other = of_two(1, "FULL_SHARD", seen=2, peak=3.0, program="other.py")
    trials = [own[0], other, *own[1:]]
    history = History(space=OBSERVED_AS, workload=own[0].workload, current={}, trials=trials)
    clean = drop_leaking_facts(history, space=OBSERVED_AS)
    assert clean.observe == {"micro_batch_size": "micro_batch_size", "shards": "sharding_strategy"}
    assert clean.idle == {"shards"}
    facts = {"sharding_strategy": "NO_SHARD", "n_params": 7, "device": "cpu"}
    assert [dict(trial.observed) for trial in clean.own] == [facts, facts, facts]
    assert [dict(trial.observed) for trial in clean.trials] == [facts, {"micro_batch_size": 2, **facts}, facts, facts]
    assert clean.known_facts == facts


def test_what_a_config_sets_is_no_known_fact() -> None:
    trials = [of_two(batch, "NO_SHARD", seen=batch) for batch in (1, 2)]
    trials = [replace(trial, observed={**trial.observed, **trial.config}) for trial in trials]
    history = History(space=OBSERVED_AS, workload=trials[0].workload, current={}, trials=trials)
    clean = drop_leaking_facts(history, space=OBSERVED_AS)
    assert clean.idle == set()
    assert clean.known_facts.keys().isdisjoint({"shards", "micro_batch_size"})
    assert [trial.observed for trial in clean.own] == [trial.observed for trial in trials]
