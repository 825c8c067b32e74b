from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.advisor import Suggestion, best_known, suggest
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.records.trial import Measurement, State, Trial, Value
from torchx_cubicml.records.workload import comparable_trials, expire_lost_trials
from torchx_cubicml.space import Parameter, SearchSpace

WORKLOAD: dict[str, Value] = {"program": "a.py", "world_size": 1}
SPACE = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1, 2)),))
CURRENT: dict[str, Value] = {"micro_batch_size": 1}


def ran(day: int, *, batch: int = 1, speed: float | None = 10_000.0, **observed: Value) -> Trial:
    return Trial(
        trial_id=f"day-{day}",
        workload=WORKLOAD,
        config={"micro_batch_size": batch},
        state=State.COMPLETED if speed else State.OUT_OF_MEMORY,
        observed=observed,
        measurement=Measurement(tokens_per_second=speed) if speed else None,
        started_at=f"2026-01-{day:02}T00:00:00.000+00:00",
        ended_at=f"2026-01-{day:02}T01:00:00.000+00:00",
    )


def open_trial(day: int, state: State, *, batch: int = 2, name: str = "open", hours: str = "00") -> Trial:
    started_at = f"2026-01-{day:02}T{hours}:00:00.000+00:00" if day else ""
    config: dict[str, Value] = {"micro_batch_size": batch}
    return Trial(trial_id=name, workload=WORKLOAD, config=config, state=state, started_at=started_at)


def kept_ids(*trials: Trial) -> list[str]:
    return [trial.trial_id for trial in comparable_trials(trials, WORKLOAD)[0]]


def best_of(*trials: Trial) -> Suggestion | None:
    return best_known(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials)


class TestSameGround:
    @pytest.mark.parametrize("fact", ["device", "n_params"])
    def test_no_gain_is_claimed_from_other_ground(self, fact: str) -> None:
        old, new = {"device": ("NVIDIA A100", "NVIDIA H100"), "n_params": (1_000_000_000, 100_000_000)}[fact]
        best = best_of(ran(1, **{fact: old}), ran(2, batch=2, speed=30_000.0, **{fact: new}))
        assert best is not None
        assert (best.gain or 0.0) < 1.5
        assert f"1 launch left out: the latest had {fact}" in best.reason

    def test_on_one_ground_nothing_is_left_out(self) -> None:
        best = best_of(ran(1, device="H100"), ran(2, batch=2, speed=30_000.0, device="H100"))
        assert best is not None
        assert best.gain == pytest.approx(3.0, rel=0.1)
        assert "left out" not in best.reason

    def test_the_latest_says_what_the_ground_is(self) -> None:
        assert kept_ids(ran(2, device="H100"), ran(3, device="A100"), ran(1, device="A100")) == ["day-3", "day-1"]

    def test_a_launch_that_failed_by_its_own_error_says_nothing(self) -> None:
        laptop = replace(open_trial(9, State.USER_ERROR), observed={"device": "cpu"})
        assert kept_ids(ran(1, device="H100"), laptop) == ["day-1"]

    def test_what_observed_nothing_and_what_is_of_another_workload_stays(self) -> None:
        elsewhere = Trial.completed(workload={"program": "b.py", "world_size": 1}, config={}, tokens_per_second=1.0)
        assert kept_ids(ran(1), ran(2, device="H100"), elsewhere) == ["day-1", "day-2", elsewhere.trial_id]
        assert comparable_trials([], WORKLOAD) == ([], ())

    def test_padding_to_shards_is_no_other_model(self) -> None:
        assert kept_ids(ran(1, n_params=1_000_000), ran(2, n_params=1_009_000)) == ["day-1", "day-2"]

    def test_another_model_is_reported_with_what_to_do(self) -> None:
        kept, lines = comparable_trials([ran(1, n_params=10**9), ran(2, n_params=10**8)], WORKLOAD)
        assert [trial.trial_id for trial in kept] == ["day-2"]
        assert lines == (
            "1 launch left out: the latest had n_params 100_000_000, not 1_000_000_000; "
            "declare the flag that changed it under [workload] in the space file",
        )

    def test_many_other_values_are_counted(self) -> None:
        _, (line,) = comparable_trials([ran(day, device=f"device {day}") for day in range(1, 7)], WORKLOAD)
        assert line.endswith("had device device 6, not device 1 or device 2 or device 3 and 2 more")

    def test_memory_of_another_device_rules_nothing_out(self) -> None:
        trials = [ran(1, batch=2, speed=None, device="V100"), ran(2, device="H100")]
        (found,) = suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials)
        assert found.config == {"micro_batch_size": 2}

    @pytest.mark.parametrize("speed", [5e-324, 1e-300, 1e300, 1.7e308])
    def test_a_throughput_that_no_training_can_have_is_left_out_and_reported(self, speed: float) -> None:
        odd = [ran(day, batch=2, speed=speed, device="H100") for day in (2, 3)]
        best = best_of(ran(1, device="H100"), *odd)
        assert best is not None
        assert best.config == CURRENT
        assert best.throughput == pytest.approx(10_000.0)
        assert f"2 launches left out: impossible throughput, {speed:g} tokens/s" in best.reason
        (found,) = suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=[ran(1), *odd])
        assert found.config == {"micro_batch_size": 2}  # which may be launched again

    def test_nor_is_one_of_another_workload_learned_from(self) -> None:
        elsewhere = [
            replace(ran(day, speed=1e300), workload={"program": "b.py", "world_size": 1}) for day in range(1, 28)
        ]
        (found,) = suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=[ran(28), *elsewhere])
        assert found.throughput == pytest.approx(10_000.0, rel=0.1)


class TestUnderWay:
    def is_suggested_again(self, *trials: Trial) -> bool:
        return bool(suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials))

    @pytest.mark.parametrize("state", [State.PLANNED, State.RUNNING])
    @pytest.mark.parametrize(("day", "again"), [(1, True), (9, False), (10, False), (0, False)])
    def test_what_is_open_for_long_blocks_no_config(self, state: State, day: int, again: bool) -> None:
        assert self.is_suggested_again(ran(10), open_trial(day, state, hours="02")) is again

    def test_a_workload_whose_launches_take_long_is_waited_for(self) -> None:
        week = replace(ran(1), ended_at="2026-01-08T00:00:00.000+00:00")
        late = replace(ran(30), workload={"program": "b.py"})
        assert not self.is_suggested_again(week, late, open_trial(9, State.RUNNING))
        assert self.is_suggested_again(week, late, open_trial(1, State.RUNNING))

    def test_a_config_whose_launches_are_lost_again_and_again_is_not_blocked(self) -> None:
        lost = [open_trial(day, State.RUNNING, name=f"lost-{day}") for day in (1, 2)]
        assert self.is_suggested_again(*lost, ran(10))

    def test_trials_of_other_workloads_stay_as_they_are(self) -> None:
        plan = open_trial(1, State.PLANNED)
        assert expire_lost_trials([plan, ran(10)], {"program": "b.py"}) == [plan, ran(10)]

    def test_damaged_times_lose_nothing(self) -> None:
        odd = Trial(trial_id="odd", workload=WORKLOAD, config={}, state=State.RUNNING, started_at="yesterday")
        assert expire_lost_trials([odd, ran(10)], WORKLOAD) == [odd, ran(10)]


def test_the_outlook_is_of_one_ground() -> None:
    trials = [ran(1, device="A100"), ran(2, device="H100"), open_trial(1, State.PLANNED)]
    space = SPACE.bind(workload=WORKLOAD, current=CURRENT)
    rng = np.random.default_rng(0)
    posterior = Posterior.of(
        space, workload=WORKLOAD, current=CURRENT, trials=[*trials, ran(20, device="H100")], rng=rng
    )
    assert posterior.n_trials == 2
    assert posterior.advice == ("1 launch left out: the latest had device H100, not A100",)
