"""When failures end a tune: told by the user's own config at once, and by those that a tune chooses in a row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import SimulatedCluster, speed
from tests.tune.draws import Draws, go, prepare_in
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.predictors.measurement_error import repeat_noise
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Binding, Parameter
from torchx_cubicml.tuner import Budget, Ended, Prepared, TuneResult
from torchx_cubicml.tuner.launch_state import FinishedLaunch, PendingLaunch
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.stopping import check_abort, early_stop_reason, stop_reason, with_last_lines

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner.proposer import Snapshot

NOW = SystemClock().now()
RECOMPUTE = "activation_checkpointing"
CHOSEN = {"micro_batch_size": 7, "width": 7}


def refuse(prepared: Prepared, state: State, *, own: bool, awaits_own: bool = False, row: int = 1) -> None:
    config = prepared.current if own else CHOSEN
    measured = Measurement(tokens_per_second=9.0, steps_counted=20) if state is State.COMPLETED else None
    trial = Trial(trial_id="t", workload={}, config=config, state=state, reason="why", measurement=measured)
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config=config, submitted_at=NOW)
    finished = FinishedLaunch(pending=pending, trial=trial, last_lines=("its last line",))
    check_abort(prepared, finished, [trial] * row, known=[trial], measured_before=False, awaits_own=awaits_own)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.USER_ERROR, "the first launch failed: why; last lines of the log:\n  its last line"),
        (State.UNKNOWN, "why; last lines of the log:\n  its last line"),
        (
            State.COMPLETED,
            'samples_per_second cannot be measured in this training; set objective = "tokens_per_second"',
        ),
    ],
    ids=str,
)
def test_a_failing_user_config_ends_a_tune(prepared: Prepared, state: State, words: str) -> None:
    with pytest.raises(LaunchError) as raised:
        refuse(prepared, state, own=True)
    assert str(raised.value).startswith(words)


def test_a_launch_without_a_record_doubts_the_store_of_a_container(prepared: Prepared) -> None:
    launch = replace(prepared.component.launch, scheduler="local_docker")
    contained = replace(prepared, component=replace(prepared.component, launch=launch))
    words = f"why, or its record is elsewhere: {prepared.store_url} may not be visible to jobs on local_docker"
    with pytest.raises(LaunchError) as raised:
        refuse(contained, State.UNKNOWN, own=True)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize("state", [State.USER_ERROR, State.UNKNOWN, State.COMPLETED], ids=str)
def test_a_chosen_config_cannot_end_a_tune_early(prepared: Prepared, state: State) -> None:
    refuse(prepared, state, own=False, awaits_own=True)


@pytest.mark.parametrize("awaits_own", [True, False])
def test_a_row_of_chosen_configs_that_fail_ends_a_tune(prepared: Prepared, awaits_own: bool) -> None:
    parallel = prepared.request.parallel
    refuse(prepared, State.USER_ERROR, own=False, awaits_own=awaits_own, row=parallel - 1)
    with pytest.raises(LaunchError, match=rf"{parallel} launches in a row ended as user_error: .* Last: why"):
        refuse(prepared, State.USER_ERROR, own=False, awaits_own=awaits_own, row=parallel)


def test_an_unmeasurable_objective_ends_a_tune(prepared: Prepared) -> None:
    with pytest.raises(LaunchError, match="samples_per_second cannot be measured"):
        refuse(prepared, State.COMPLETED, own=False)


def test_an_objective_per_cost_is_replaced_by_another_one(prepared: Prepared) -> None:
    per_hour = replace(prepared, space=replace(prepared.space, objective="samples_per_device_hour"))
    with pytest.raises(LaunchError, match=r'samples_per_device_hour cannot .* objective = "tokens_per_device_hour"'):
        refuse(per_hour, State.COMPLETED, own=False)


def test_an_objective_per_joule_tells_that_no_power_was_recorded(prepared: Prepared) -> None:
    per_joule = replace(prepared, space=replace(prepared.space, objective="tokens_per_joule"))
    with pytest.raises(LaunchError, match=r"tokens_per_joule cannot .* \(no power was recorded: .* objective = "):
        refuse(per_joule, State.COMPLETED, own=False)
    both = replace(prepared, space=replace(prepared.space, second_objective="tokens_per_joule"))
    both = replace(both, space=replace(both.space, objective="tokens_per_second"))
    with pytest.raises(LaunchError, match=r"tokens_per_joule cannot .* \(no power was recorded: .* objective = "):
        refuse(both, State.COMPLETED, own=False)


def test_two_objectives_are_replaced_by_two_that_are_measured(prepared: Prepared) -> None:
    pair = {"objective": "samples_per_second", "second_objective": "samples_per_device_hour"}
    both = replace(prepared, space=replace(prepared.space, **pair))
    words = r'samples_per_second cannot .* objective = \["tokens_per_second", "tokens_per_device_hour"\] in '
    with pytest.raises(LaunchError, match=words):
        refuse(both, State.COMPLETED, own=False)


def test_power_is_not_missed_where_it_was_recorded(prepared: Prepared) -> None:
    metered = Measurement(samples_per_second=9.0, steps_counted=20, power_watts=300.0)
    asked = replace(prepared, space=replace(prepared.space, objective="tokens_per_joule"))
    with pytest.raises(LaunchError, match=r'in this training; set objective = "samples_per_joule" in '):
        check(asked, [ended(State.COMPLETED, metered)], measured_before=False)


@pytest.mark.parametrize(
    ("tuned", "others", "words"),
    [
        (["width"], [], 'samples_per_second cannot be measured in this training; set objective = "steps_per_second"'),
        (["width"], [4], "steps per second do not compare as launches differ in micro_batch_size; count samples with"),
        (["width", "micro_batch_size"], [], "do not compare as micro_batch_size may change the work of a step; count"),
    ],
    ids=["alike", "launches differ", "configs differ"],
)
def test_steps_are_advised_only_where_they_compare(
    prepared: Prepared, tuned: list[str], others: list[int], words: str
) -> None:
    kept = tuple(item for item in prepared.space.parameters if item.name in tuned)
    asked = replace(prepared, space=replace(prepared.space, parameters=kept))
    steps = Measurement(mean_step_time_s=0.1, statistic="mean", steps_counted=20)
    own = replace(ended(State.COMPLETED, steps), workload=asked.workload, config={}, observed={"micro_batch_size": 8})
    known = [own, *(replace(own, observed={"micro_batch_size": each}) for each in others)]
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config=CHOSEN, submitted_at=NOW)
    finished = FinishedLaunch(pending=pending, trial=own)
    with pytest.raises(LaunchError, match=words):
        check_abort(asked, finished, [own], known=known, measured_before=False, awaits_own=False)


def test_a_tune_takes_the_objective_that_is_measured(tmp_path: Path) -> None:
    prepared = prepare_in(tmp_path)
    space = replace(prepared.space, objective="tokens_per_second", is_objective_stated=False)
    asked = replace(prepared, space=space, request=replace(prepared.request, budget=Budget(launches=20), parallel=4))

    def in_samples(config: Config) -> Measurement:
        return Measurement(samples_per_second=speed(config))

    steps = go(asked, SimulatedCluster(seed=4, fates=("done",), measure=in_samples))
    assert {step.objective for step in steps if isinstance(step, Ended)} == {"samples_per_second"}
    result = steps[-1]
    assert isinstance(result, TuneResult)
    assert result.comparison is not None
    assert result.comparison.objective == "samples_per_second"


def test_a_chosen_config_that_fails_first_ends_no_tune(prepared: Prepared) -> None:
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=20), parallel=4))
    cluster = SimulatedCluster(seed=4, fates=("done",), fates_of={2: "refuses"})
    steps = go(asked, cluster)
    first = next(step for step in steps if isinstance(step, Ended))
    assert first.trial.state is State.USER_ERROR
    assert first.trial.config != asked.current
    assert isinstance(steps[-1], TuneResult)
    assert steps[-1].launches == 20
    assert steps[-1].comparison is not None


def ended(state: State, measurement: Measurement | None = None) -> Trial:
    return Trial(trial_id="t", workload={}, config=CHOSEN, state=state, reason="why", measurement=measurement)


def check(
    prepared: Prepared, own: list[Trial], *, measured_before: bool, refused: bool = False, parallel: int = 1
) -> None:
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config=CHOSEN, submitted_at=NOW)
    asked = replace(prepared, request=replace(prepared.request, parallel=parallel))
    finished = FinishedLaunch(pending=pending, trial=own[-1], refused=refused)
    check_abort(asked, finished, own, known=own, measured_before=measured_before, awaits_own=False)


@pytest.mark.parametrize(
    ("state", "measured_before", "parallel", "most"),
    [
        (State.USER_ERROR, False, 1, 3),
        (State.USER_ERROR, False, 5, 5),  # a broken node ends all of them at once
        (State.USER_ERROR, True, 1, 6),
        (State.TIMEOUT, True, 5, 10),
        (State.INFRASTRUCTURE, False, 1, 3),
        (State.UNKNOWN, False, 1, 3),
        (State.OUT_OF_MEMORY, False, 1, 9),
    ],
)
def test_so_many_failures_of_one_kind_in_a_row_end_a_tune(
    prepared: Prepared, state: State, measured_before: bool, parallel: int, most: int
) -> None:
    check(prepared, [ended(state)] * (most - 1), measured_before=measured_before, parallel=parallel)
    with pytest.raises(LaunchError, match=f"stopping: {most} launches in a row ended as {state}: "):
        check(prepared, [ended(state)] * most, measured_before=measured_before, parallel=parallel)


def test_out_of_memory_in_a_row_does_not_end_a_tune(prepared: Prepared) -> None:
    check(prepared, [ended(State.OUT_OF_MEMORY)] * 100, measured_before=True)


def test_what_interrupts_a_row_and_what_does_not(prepared: Prepared) -> None:
    failed, other = ended(State.USER_ERROR), ended(State.TIMEOUT)
    measured = ended(State.USER_ERROR, Measurement(tokens_per_second=1.0))
    check(prepared, [failed, failed, other, failed, failed], measured_before=False)
    check(prepared, [failed, failed, measured, failed, failed], measured_before=False)
    check(prepared, [failed] * 9 + [ended(State.STOPPED_EARLY)], measured_before=False)
    with pytest.raises(LaunchError, match="3 launches in a row"):
        check(prepared, [failed, failed, ended(State.STOPPED_EARLY), failed], measured_before=False)


def test_three_rejected_launches_in_a_row_end_a_tune(prepared: Prepared) -> None:
    rejected = ended(State.INFRASTRUCTURE)
    check(prepared, [rejected] * 2, measured_before=True, refused=True)
    with pytest.raises(LaunchError, match="stopping: 3 launches in a row were rejected: why"):
        check(prepared, [rejected] * 3, measured_before=True, refused=True)
    with pytest.raises(LaunchError, match=r"^why$"):  # the very first
        check(prepared, [rejected], measured_before=False, refused=True)


def test_a_training_without_steps_is_reported(prepared: Prepared) -> None:
    with pytest.raises(LaunchError, match="no steady state was measured"):
        check(prepared, [ended(State.COMPLETED)], measured_before=False)
    check(prepared, [ended(State.COMPLETED)], measured_before=True)
    check(prepared, [ended(State.COMPLETED, Measurement(samples_per_second=1.0))], measured_before=False)


def test_lines_of_ranks_come_first() -> None:
    of_ranks = [f"[rank{number}]:line {number}" for number in range(20)]
    told = with_last_lines("it failed", ["launcher", *of_ranks, "launcher"])
    assert told.splitlines() == ["it failed; last lines of the log:", *(f"  {line}" for line in of_ranks[5:])]
    assert with_last_lines("it failed", ["launcher"]) == "it failed; last lines of the log:\n  launcher"
    assert with_last_lines("it failed", []) == "it failed"


def running(speed: float, *, steps: int = 10, error: float | None = 0.001) -> Trial:
    measurement = Measurement(tokens_per_second=speed, steps_counted=steps, relative_error=error)
    return Trial(trial_id="r", workload={}, config=CHOSEN, state=State.RUNNING, measurement=measurement)


def run_of(size: int, speed: float, state: State = State.COMPLETED) -> Trial:
    measurement = Measurement(tokens_per_second=speed)
    return Trial(trial_id=str(speed), workload={}, config={"n": size}, state=state, measurement=measurement)


def stops(trial: Trial, *others: Trial) -> bool:
    return bool(early_stop_reason(trial, others, objective="tokens_per_second"))


class TestEarlyStop:
    QUIET = (*(run_of(size, speed) for size in range(40) for speed in (100.0, 100.5)), run_of(99, 200.0))

    def test_three_times_the_noise_below_the_best_is_far_enough(self) -> None:
        for error in (0.05, 0.1):
            noise = math.hypot(error, repeat_noise(self.QUIET, objective="tokens_per_second") * 2**0.5)
            assert not stops(running(200.0 * math.exp(-2.95 * noise), error=error), *self.QUIET)
            assert stops(running(200.0 * math.exp(-3.05 * noise), error=error), *self.QUIET)

    def test_a_tenth_is_the_least_however_quiet_the_machine_is(self) -> None:
        assert 3 * repeat_noise(self.QUIET, objective="tokens_per_second") * 2**0.5 < 0.1
        assert not stops(running(200.0 * math.exp(-0.099)), *self.QUIET)
        assert stops(running(200.0 * math.exp(-0.101)), *self.QUIET)

    def test_ten_steps_are_the_fewest(self) -> None:
        assert not stops(running(1.0, steps=9), *self.QUIET)
        assert stops(running(1.0, steps=10), *self.QUIET)

    def test_nothing_is_stopped_before_another_config_has_ended(self) -> None:
        assert not stops(running(1.0))
        assert not stops(running(1.0), run_of(1, 200.0, State.RUNNING))
        assert not stops(replace(running(1.0), measurement=None), *self.QUIET)
        assert not stops(replace(running(1.0), measurement=Measurement(samples_per_second=1.0)), *self.QUIET)

    def test_the_best_config_is_that_of_the_highest_geometric_mean(self) -> None:
        lucky = [run_of(99, 400.0), run_of(99, 100.0)]  # together 200, the geometric mean
        quiet = [*self.QUIET[:-1], *lucky]
        noise = math.hypot(0.001, repeat_noise(quiet, objective="tokens_per_second") * 2**0.5)
        gap = max(3 * noise, 0.1)
        assert not stops(running(200.0 * math.exp(-0.95 * gap)), *quiet)
        assert stops(running(200.0 * math.exp(-1.05 * gap)), *quiet)

    def test_the_reason_states_the_speed_and_its_distance(self) -> None:
        reason = early_stop_reason(running(1500.0), [run_of(1, 3000.0)], objective="tokens_per_second")
        multiple = math.log(2) / math.hypot(0.001, repeat_noise([], objective="tokens_per_second") * 2**0.5)
        assert reason == (
            "ended early: 1,500 tokens_per_second after 10 steps, 50% below the fastest seen "
            f"({multiple:.0f} times the noise)"
        )


def test_of_two_objectives_one_other_must_be_far_better_in_both(prepared: Prepared) -> None:
    pair = {"objective": "tokens_per_second", "second_objective": "tokens_per_device_hour"}
    both = replace(prepared, space=replace(prepared.space, **pair))
    slow = replace(running(100.0), observed={"world_size": 1})
    fast = replace(run_of(1, 200.0), observed={"world_size": 8})  # per device, a quarter as fast
    assert stop_reason(replace(both, space=replace(both.space, second_objective="")), slow, [fast])
    assert stop_reason(both, slow, [fast]) == ""
    frugal = replace(run_of(2, 50.0), observed={"world_size": 1})
    assert stop_reason(both, replace(slow, observed={"world_size": 2}), [fast, frugal]) == ""  # none is better in both
    alike = replace(run_of(3, 200.0), observed={"world_size": 1})
    assert stop_reason(both, slow, [fast, alike]).startswith("ended early: 100 tokens_per_second after 10 steps, 50%")


@pytest.mark.parametrize("kind", ["refused", "values refused"])
def test_a_launch_with_refused_values_is_no_launch_of_its_config(prepared: Prepared, kind: str) -> None:
    words = Parameter(name="recompute", choices=("none", "full"), binding=Binding(kind="hook", name=RECOMPUTE))
    space = replace(prepared.space, parameters=(*prepared.space.parameters, words), objective="tokens_per_second")
    asked = replace(prepared, space=space, current={**prepared.current, "recompute": "none"})
    slow = replace(running(100.0, steps=20), config={**CHOSEN, "recompute": "none"})
    fast = replace(run_of(1, 200.0), config={**CHOSEN, "recompute": "full"})
    assert stop_reason(asked, slow, [fast]).startswith("ended early: 100 tokens_per_second after 20 steps, 50% below")
    fact = {f"{RECOMPUTE}_hook": f"{kind}: the model is compiled"}
    assert stop_reason(asked, slow, [replace(fast, observed=fact)]) == ""
    assert stop_reason(asked, replace(slow, observed=fact), [fast]).startswith("ended early: 100 ")  # only checked
    refused = replace(fast, state=State.RUNNING, measurement=slow.measurement, observed=fact)
    assert stop_reason(asked, refused, []) == f"ended early: recompute was {kind}: the model is compiled"


def test_three_failures_in_a_row_are_allowed(prepared: Prepared) -> None:
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=12), parallel=1))
    cluster = SimulatedCluster(seed=4, fates=("done",), fates_of=dict.fromkeys((2, 3, 4, 5), "refuses"))
    result = go(asked, cluster)[-1]
    assert isinstance(result, TuneResult)
    assert result.launches == 11  # nothing faster is found, and one launch is too few to find and confirm it


def test_a_launch_carries_the_promise_it_was_made_for(prepared: Prepared) -> None:
    class Promises(Draws):
        def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
            return [replace(each, throughput=1234.0, low=1000.0, high=1500.0) for each in super().suggest(snapshot)]

    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=3), parallel=1))
    cluster = SimulatedCluster(seed=4, fates=("done",))
    go(asked, cluster, Promises())
    promised = [job.contract.suggestion for job in cluster.jobs.values()]
    assert promised[1] is not None
    assert promised[1]["throughput"] == 1234.0
