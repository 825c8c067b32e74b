from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import Suggestion, best_known, suggest
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.records.workload import comparable_trials, expire_lost_trials, is_same_workload, value_key
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

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


KINDS: tuple[Value, ...] = (True, False, 1, 0, 4, 4.0, 0.5, "4", "", (4,), (4.0, "a"), (True,), (1,), ("True",), ())


class TestSameWorkload:
    @pytest.mark.parametrize("known", KINDS, ids=repr)
    def test_values_are_the_same_if_equal_and_of_one_kind(self, known: Value) -> None:
        def plain(value: Value) -> list[object]:
            items = value if isinstance(value, tuple) else (value,)
            return [isinstance(value, tuple), *((isinstance(item, bool), item) for item in items)]

        trial = Trial.infeasible(workload={"x": known}, config={})
        for value in KINDS:
            same = plain(known) == plain(value)
            assert is_same_workload(trial, {"x": value}) is same
            assert (value_key(known) == value_key(value)) is same

    def test_every_fact_counts_wherever_it_is_known(self) -> None:
        trial = Trial(
            trial_id="a",
            workload={"x": 1},
            observed={"x": 9, "y": 2},
            config={"y": 9, "z": 3},
            state=State.RUNNING,
        )
        assert is_same_workload(trial, {})
        assert is_same_workload(trial, {"x": 1, "y": 2, "z": 3})
        for change in ({"x": 9}, {"y": 9}, {"z": 9}, {"w": 1}):
            assert not is_same_workload(trial, {"x": 1, **change})


class TestSameGround:
    @pytest.mark.parametrize(
        ("size", "kept"), [(9_899, False), (9_900, True), (10_100, True), (10_101, False), (0, False), ("10000", False)]
    )
    def test_sizes_within_one_percent_are_one_model(self, size: Value, kept: bool) -> None:
        trials = [ran(1, n_params=size), ran(2, n_params=10_000)]
        found, lines = comparable_trials(trials, WORKLOAD)
        assert found == trials[1 - kept :]
        assert bool(lines) is not kept

    @pytest.mark.parametrize(
        ("n_others", "others"),
        [
            (1, "device 1"),
            (2, "device 1 or device 2"),
            (3, "device 1 or device 2 or device 3"),
            (4, "device 1 or device 2 or device 3 and 1 more"),
        ],
    )
    def test_a_message_names_up_to_three_others(self, n_others: int, others: str) -> None:
        trials = [ran(day, device=f"device {day}") for day in range(1, n_others + 1)]
        kept, lines = comparable_trials([*trials, ran(9, device="H100"), ran(8, device="H100")], WORKLOAD)
        plural = "es" if n_others > 1 else ""
        assert [trial.trial_id for trial in kept] == ["day-9", "day-8"]
        assert lines == (f"{n_others} launch{plural} left out: the latest had device H100, not {others}",)

    def test_equal_others_are_named_once(self) -> None:
        trials = [ran(1, device="A"), ran(2, device="A"), ran(3, device="B")]
        assert comparable_trials(trials, WORKLOAD)[1] == ("2 launches left out: the latest had device B, not A",)

    def test_a_long_or_odd_device_is_named_in_short(self) -> None:
        trials = [ran(1, device="x" * 99), ran(2, device=True), ran(3, device=12_345)]
        (line,) = comparable_trials(trials, WORKLOAD)[1]
        assert line == f"2 launches left out: the latest had device 12_345, not True or {'x' * 60}"

    def test_device_and_size_are_both_compared(self) -> None:
        trials = [ran(1, device="A", n_params=1), ran(2, device="B", n_params=1), ran(3, device="B", n_params=2)]
        kept, lines = comparable_trials(trials, WORKLOAD)
        assert kept == trials[2:]
        assert [line.partition(",")[0] for line in lines] == [
            "1 launch left out: the latest had device B",
            "1 launch left out: the latest had n_params 2",
        ]

    def test_the_end_or_else_the_start_tells_the_latest(self) -> None:
        late_start = replace(ran(3, device="A"), ended_at="")
        assert kept_ids(late_start, ran(2, device="B")) == ["day-3"]
        assert kept_ids(replace(ran(4, device="A"), ended_at="2026-01-01T01:00:00Z"), ran(2, device="B")) == ["day-2"]
        untimed = [replace(ran(1, device=name), trial_id=name, started_at="", ended_at="") for name in ("b", "a")]
        assert kept_ids(*untimed) == ["b"]
        assert kept_ids(*untimed[::-1]) == ["b"]

    @pytest.mark.parametrize(
        ("state", "measured", "decides"),
        [
            (State.OUT_OF_MEMORY, False, True),
            (State.TIMEOUT, False, False),
            (State.TIMEOUT, True, True),
            (State.RUNNING, True, False),
            (State.COMPLETED, False, False),
        ],
    )
    def test_a_measured_or_full_trial_decides_the_device(self, state: State, measured: bool, decides: bool) -> None:
        measurement = Measurement(tokens_per_second=1.0) if measured else None
        late = replace(ran(2, device="B"), state=state, measurement=measurement)
        assert kept_ids(ran(1, device="A"), late) == (["day-2"] if decides else ["day-1"])

    def test_impossible_throughputs_are_each_named(self) -> None:
        trials = [ran(1, speed=1e300), ran(2, speed=1e-300), ran(3), ran(4, speed=1e300)]
        kept, lines = comparable_trials(trials, WORKLOAD)
        assert kept == [trials[2]]
        assert lines == ("3 launches left out: impossible throughput, 1e+300 tokens/s or 1e-300 tokens/s",)
        assert comparable_trials(trials[:1], WORKLOAD)[1] == (
            "1 launch left out: impossible throughput, 1e+300 tokens/s",
        )

    def test_a_launch_whose_values_a_hook_refused_measured_other_values(self) -> None:
        refused = ran(2, batch=2, speed=30_000.0, torchrec_hook="values refused: no plan")
        kept, lines = comparable_trials([ran(1), refused, ran(3, torchrec_hook="refused: no planner")], WORKLOAD)
        assert [trial.measurement is not None for trial in kept] == [True, False, True]
        assert (kept[1].state, kept[1].reason, lines) == (State.COMPLETED, "values refused: no plan", ())
        best = best_of(ran(1), refused)
        assert best is not None
        assert (best.config, best.throughput) == (CURRENT, pytest.approx(10_000.0))

    @pytest.mark.parametrize("fact", ["device", "n_params"])
    def test_no_gain_is_claimed_across_devices_or_models(self, fact: str) -> None:
        old, new = {"device": ("NVIDIA A100", "NVIDIA H100"), "n_params": (1_000_000_000, 100_000_000)}[fact]
        best = best_of(ran(1, **{fact: old}), ran(2, batch=2, speed=30_000.0, **{fact: new}))
        assert best is not None
        assert (best.gain or 0.0) < 1.5
        assert f"1 launch left out: the latest had {fact}" in best.reason

    def test_trials_on_one_device_all_count(self) -> None:
        best = best_of(ran(1, device="H100"), ran(2, batch=2, speed=30_000.0, device="H100"))
        assert best is not None
        assert best.gain == pytest.approx(3.0, rel=0.1)
        assert "left out" not in best.reason

    def test_the_latest_trial_decides_the_device(self) -> None:
        assert kept_ids(ran(2, device="H100"), ran(3, device="A100"), ran(1, device="A100")) == ["day-3", "day-1"]

    def test_a_user_error_does_not_decide_the_device(self) -> None:
        laptop = replace(open_trial(9, State.USER_ERROR), observed={"device": "cpu"})
        assert kept_ids(ran(1, device="H100"), laptop) == ["day-1"]

    def test_unobserved_and_foreign_trials_stay(self) -> None:
        elsewhere = Trial.completed(workload={"program": "b.py", "world_size": 1}, config={}, tokens_per_second=1.0)
        assert kept_ids(ran(1), ran(2, device="H100"), elsewhere) == ["day-1", "day-2", elsewhere.trial_id]
        assert comparable_trials([], WORKLOAD) == ([], ())

    def test_padding_to_shards_is_the_same_model(self) -> None:
        assert kept_ids(ran(1, n_params=1_000_000), ran(2, n_params=1_009_000)) == ["day-1", "day-2"]

    def test_another_model_is_reported_with_advice(self) -> None:
        kept, lines = comparable_trials([ran(1, n_params=10**9), ran(2, n_params=10**8)], WORKLOAD)
        assert [trial.trial_id for trial in kept] == ["day-2"]
        assert lines == (
            "1 launch left out: the latest had n_params 100_000_000, not 1_000_000_000; "
            "declare the flag that changed it under [workload] in the space file",
        )

    def test_many_other_values_are_counted(self) -> None:
        _, (line,) = comparable_trials([ran(day, device=f"device {day}") for day in range(1, 7)], WORKLOAD)
        assert line.endswith("had device device 6, not device 1 or device 2 or device 3 and 2 more")

    def test_memory_of_another_device_excludes_no_config(self) -> None:
        trials = [ran(1, batch=2, speed=None, device="V100"), ran(2, device="H100")]
        (found,) = suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials)
        assert found.config == {"micro_batch_size": 2}

    @pytest.mark.parametrize("speed", [5e-324, 1e-300, 1e300, 1.7e308])
    def test_an_impossible_throughput_is_left_out_and_reported(self, speed: float) -> None:
        odd = [ran(day, batch=2, speed=speed, device="H100") for day in (2, 3)]
        best = best_of(ran(1, device="H100"), *odd)
        assert best is not None
        assert best.config == CURRENT
        assert best.throughput == pytest.approx(10_000.0)
        assert f"2 launches left out: impossible throughput, {speed:g} tokens/s" in best.reason
        (found,) = suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=[ran(1), *odd])
        assert found.config == {"micro_batch_size": 2}  # which may be launched again

    def test_an_impossible_throughput_of_another_workload_is_ignored(self) -> None:
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
    def test_an_old_open_trial_blocks_no_config(self, state: State, day: int, again: bool) -> None:
        assert self.is_suggested_again(ran(10), open_trial(day, state, hours="02")) is again

    def test_a_workload_whose_launches_take_long_is_waited_for(self) -> None:
        week = replace(ran(1), ended_at="2026-01-08T00:00:00.000+00:00")
        late = replace(ran(30), workload={"program": "b.py"})
        assert not self.is_suggested_again(week, late, open_trial(9, State.RUNNING))
        assert self.is_suggested_again(week, late, open_trial(1, State.RUNNING))

    def test_a_config_with_lost_launches_is_not_blocked(self) -> None:
        lost = [open_trial(day, State.RUNNING, name=f"lost-{day}") for day in (1, 2)]
        assert self.is_suggested_again(*lost, ran(10))

    @pytest.mark.parametrize(
        ("hours", "limit_hours"), [(0, 24), (6, 24), (7, 28), (48, 192)], ids=["none", "short", "long", "longer"]
    )
    def test_the_limit_is_a_day_or_four_times_the_longest(self, hours: int, limit_hours: int) -> None:
        def at(seconds: float) -> str:
            return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()

        longest = replace(ran(1), started_at=at(0), ended_at=at(3600 * hours))
        short = replace(ran(1), trial_id="short", started_at=at(0), ended_at=at(60))
        open_trials = [
            replace(open_trial(1, state), trial_id=state, started_at=at(0)) for state in (State.PLANNED, State.RUNNING)
        ]
        elsewhere = {"workload": {"program": "b.py"}, "started_at": at(3600 * limit_hours)}
        ends = [replace(ran(2), **elsewhere, ended_at=end) for end in ("", at(3600 * limit_hours + 0.001))]
        trials = [longest, *open_trials, short]
        assert expire_lost_trials([*trials, ends[0]], WORKLOAD) == [*trials, ends[0]]
        lost = replace(open_trials[1], state=State.INFRASTRUCTURE)
        assert expire_lost_trials([*trials, ends[1]], WORKLOAD) == [longest, lost, short, ends[1]]

    def test_a_trial_with_one_time_alone_has_no_length(self) -> None:
        halves = [replace(ran(1), started_at="", ended_at="2026-01-09T00:00:00Z"), replace(ran(1), ended_at="")]
        assert self.is_suggested_again(*halves, ran(10), open_trial(8, State.RUNNING))

    def test_trials_of_other_workloads_stay_as_they_are(self) -> None:
        plan = open_trial(1, State.PLANNED)
        assert expire_lost_trials([plan, ran(10)], {"program": "b.py"}) == [plan, ran(10)]

    def test_damaged_times_lose_nothing(self) -> None:
        odd = Trial(trial_id="odd", workload=WORKLOAD, config={}, state=State.RUNNING, started_at="yesterday")
        assert expire_lost_trials([odd, ran(10)], WORKLOAD) == [odd, ran(10)]


def test_a_config_whose_failure_was_caught_does_not_fit_and_is_not_proposed() -> None:
    caught = ran(2, batch=2, speed=30_000.0, micro_batch_size=1, caught_out_of_memory="CUDA out of memory")
    trials = [ran(1, batch=1, micro_batch_size=1), caught]
    posterior = Posterior.of(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials, rng=np.random.default_rng(0))
    outcomes = {each.config["micro_batch_size"]: each for each in posterior.outcomes.values()}
    assert (outcomes[2].out_of_memory, outcomes[2].measured) == (True, ())
    assert outcomes[1].measured == (10_000.0,)
    best = best_of(*trials)
    assert best is not None
    assert best.config == {"micro_batch_size": 1}
    assert comparable_trials(trials, {"program": "b.py"})[0] == trials


def test_the_posterior_uses_one_device() -> None:
    trials = [ran(1, device="A100"), ran(2, device="H100"), open_trial(1, State.PLANNED)]
    space = SPACE.bind(workload=WORKLOAD, current=CURRENT)
    rng = np.random.default_rng(0)
    posterior = Posterior.of(
        space, workload=WORKLOAD, current=CURRENT, trials=[*trials, ran(20, device="H100")], rng=rng
    )
    assert posterior.n_trials == 2
    assert posterior.advice == ("1 launch left out: the latest had device H100, not A100",)
