"""Crowded measurements are believed less, by what ran beside them; all others are as they were."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comparisons import compare
from torchx_cubicml.advisor.comparison import Repeats
from torchx_cubicml.records.crowding import crowded_share, crowding_text, mean_launches_beside, with_crowding
from torchx_cubicml.records.event import trial_events
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore, read_trials
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Value

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def trial(
    number: int = 0,
    *,
    begin: float = 0.0,
    end: float = 100.0,
    queued: float = 0.0,
    error: float | None = 0.02,
    measured: bool = True,
    **observed: Value,
) -> Trial:
    """Return a trial whose steps ran from ``begin`` to ``end``, in seconds after noon."""
    measurement = Measurement(
        tokens_per_second=1000.0,
        steps_counted=90,
        warmup_steps=10,
        mean_step_time_s=(end - begin) / 100,
        relative_error=error,
        statistic="mean",
    )
    return Trial(
        trial_id=f"t-{number}",
        launch_id=f"l-{number}" if queued else "",
        workload={},
        config={"a": 1},
        state=State.COMPLETED,
        observed=observed,
        measurement=measurement if measured else None,
        started_at=(NOON + timedelta(seconds=begin - queued)).isoformat(),
        ended_at=(NOON + timedelta(seconds=end)).isoformat(),
    )


def uncertainty(trial: Trial) -> float:
    assert trial.measurement is not None
    return trial.measurement.uncertainty


PROCESSORS: dict[str, Value] = {"host_cpus": 4, "idle_cpus": 0.5, "other_busy_cpus": 2.5}
DEVICES: dict[str, Value] = {"host": "h", "devices_per_node": 1}


def test_load_beside_a_launch_widens_it_by_the_share_that_it_took() -> None:
    (found,) = with_crowding([trial(**PROCESSORS)])
    assert uncertainty(found) == pytest.approx(math.hypot(0.02, math.log(2)))  # (2.5 - 0.5) / 4
    assert uncertainty(with_crowding([trial(error=None, **PROCESSORS)])[0]) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "observed",
    [
        {},
        {"host_cpus": 4, "other_busy_cpus": 2.5},
        {"host_cpus": 128, "other_busy_cpus": 60.0, "idle_cpus": 60.0},  # the job could have had those that were idle
        {"host_cpus": 128, "other_busy_cpus": 70.0, "idle_cpus": 48.0},
        {"host_cpus": 128, "other_busy_cpus": 110.0, "idle_cpus": 12.8},
        {"host_cpus": 8, "other_busy_cpus": 5.0, "idle_cpus": 2.0},
        {"host_cpus": 4, "other_busy_cpus": 0.39, "idle_cpus": 0.0},  # the usual background
        {"host_cpus": 0, "other_busy_cpus": 1.0, "idle_cpus": 0.0},
        {"host_cpus": 4, "other_busy_cpus": "many", "idle_cpus": True},
        {**DEVICES, "other_device_processes": 1, "other_device_share": 0.05},
    ],
)
def test_what_is_not_crowded_is_unchanged(observed: dict[str, Value]) -> None:
    quiet = trial(**observed)
    assert with_crowding([quiet])[0] is quiet
    assert crowding_text(quiet) == ""


@pytest.mark.parametrize(
    ("processors", "busy", "idle", "share"),
    [(128, 110.0, 10.0, 100 / 128), (8, 5.0, 1.0, 0.5), (2, 1.0, 0.2, 0.4), (2, 1.6, 0.0, 0.8)],
)
def test_few_idle_processors_are_not_enough(processors: int, busy: float, idle: float, share: float) -> None:
    crowded = trial(host_cpus=processors, other_busy_cpus=busy, idle_cpus=idle)
    assert crowded_share(crowded) == pytest.approx(share)


@pytest.mark.parametrize(("busy", "text"), [(0.97, "0.97"), (2.5, "2.5"), (120.4, "120"), (1210.0, "1210")])
def test_the_number_of_busy_processors_is_plain(busy: float, text: str) -> None:
    shown = trial(host_cpus=int(busy) + 1, other_busy_cpus=busy, idle_cpus=0.0)
    assert crowding_text(shown) == f"crowded: other processes kept {text} of {int(busy) + 1} processors busy"


def test_processes_on_its_devices_widen_a_launch() -> None:
    shared = trial(**DEVICES, other_device_processes=2, other_device_share=0.5)
    assert uncertainty(with_crowding([shared])[0]) == pytest.approx(math.hypot(0.02, math.log(2)))
    assert crowding_text(shared) == "crowded: 2 other processes held 50% of the memory in use on its devices"


def test_launches_on_one_host_at_one_time_widen_each_other() -> None:
    first, second, later = (trial(n, begin=50.0 * n * n, end=50.0 * n * n + 100, host="h") for n in range(3))
    elsewhere = trial(9, host="g")
    beside = mean_launches_beside([first, second, later, elsewhere])
    assert beside == pytest.approx({id(first): 0.5, id(second): 0.5})
    found = with_crowding([first, second, later, elsewhere])
    widened = math.hypot(0.02, -math.log(1 - 0.5 / 1.5))
    assert [uncertainty(each) for each in found] == pytest.approx([widened, widened, 0.02, 0.02])
    assert found[2] is later
    assert crowding_text(first, beside=beside[id(first)]) == "crowded: 0.5 other recorded launches ran beside it"


def test_waiting_in_a_queue_is_not_beside_a_launch() -> None:
    ran, waited = trial(1, host="h"), trial(2, begin=200.0, end=300.0, queued=1000.0, host="h")
    assert mean_launches_beside([ran, waited]) == {}


def test_a_moment_too_short_for_the_clock_is_beside_nothing() -> None:
    moments = [trial(n, begin=50.0 - 1e-8, end=50.0, host="h") for n in range(2)]
    assert mean_launches_beside([*moments, trial(2, host="h")]) == {}


def test_the_host_decides_where_it_was_seen() -> None:
    quiet = {"host": "h", "host_cpus": 64, "idle_cpus": 50.0, "other_busy_cpus": 4.0}
    assert crowded_share(trial(**quiet), beside=1.0) == 0.0
    busier = {**quiet, "idle_cpus": 40.0, "other_busy_cpus": 16.0}
    assert crowded_share(trial(**busier)) == 0.0
    assert crowded_share(trial(**busier), beside=1.0) == 0.25  # launches share more than processors
    alone = {**DEVICES, "other_device_processes": 0, "other_device_share": 0.0}
    assert crowded_share(trial(**alone), beside=1.0) == 0.0
    assert crowded_share(trial(**DEVICES), beside=1.0) == 0.5


@pytest.mark.parametrize(
    ("mine", "others", "is_beside"),
    [
        ("0,1", "2,3", False),
        ("0,1", "1", True),
        ("0", "10", False),
        (None, "1", True),
        ("", "1", True),
        ("0, 1", "1, 0", True),
        ("0, 1", "2", False),
        ("0", "GPU-8a3f", True),  # may be one device
        ("GPU-8a3f,GPU-11", "GPU-9b", False),
        ("GPU-8a3f", "GPU-8a", True),  # shortened
        ("MIG-8a3f", "MIG-9b", False),
        ("MIG-8a3f", "GPU-9b", True),  # may be a part of it
        ("x", "y", True),
    ],
)
def test_launches_on_devices_of_their_own_are_not_beside_each_other(
    mine: str | None, others: str, is_beside: bool
) -> None:
    both = [
        trial(n, **DEVICES, **({} if devices is None else {"visible_devices": devices}))
        for n, devices in enumerate((mine, others))
    ]
    assert bool(mean_launches_beside(both)) == is_beside
    on_processors = [replace(each, observed={**each.observed, "devices_per_node": 1}) for each in both]
    on_processors[0] = trial(0, host="h", visible_devices="0")
    assert mean_launches_beside(on_processors)


SHARES = st.floats(0, 1)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from("gh"),
        "host_cpus": st.integers(0, 64),
        "other_busy_cpus": st.floats(0, 64),
        "idle_cpus": st.floats(0, 64),
        "devices_per_node": st.just(8),
        "other_device_share": SHARES,
        "other_device_processes": st.integers(0, 3),
        "visible_devices": st.sampled_from(["0", "1", "0,1"]),
    },
)


@st.composite
def histories(draw: st.DrawFn) -> list[Trial]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        begin = draw(st.floats(0, 300))
        found.append(
            trial(
                number,
                begin=begin,
                end=begin + draw(st.floats(1, 200)),
                queued=draw(st.sampled_from([0.0, 500.0])),
                error=draw(st.none() | st.floats(0, 2)),
                measured=draw(st.integers(0, 5)) > 0,
                **draw(FACTS),
            )
        )
    return found


@given(histories(), st.randoms(use_true_random=False))
def test_crowding_never_makes_a_measurement_more_certain(history: list[Trial], chance: object) -> None:
    beside = mean_launches_beside(history)
    found = with_crowding(history)
    for before, after in zip(history, found, strict=True):
        is_crowded = before.measurement is not None and crowded_share(before, beside=beside.get(id(before), 0.0)) > 0
        assert (after is before) != is_crowded
        if is_crowded:
            assert before.measurement is not None
            assert uncertainty(after) > uncertainty(before)
            assert crowding_text(before, beside=beside.get(id(before), 0.0)).startswith("crowded: ")
            error = after.measurement.relative_error if after.measurement else None
            measurement = replace(before.measurement, relative_error=error)
            assert after == replace(before, measurement=measurement, crowding=after.crowding)
            assert error == pytest.approx(math.hypot(before.measurement.uncertainty, after.crowding))
    shuffled = list(history)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    again = {each.trial_id: each for each in with_crowding(shuffled)}
    for each in found:
        if each.measurement is not None:
            assert uncertainty(again[each.trial_id]) == pytest.approx(uncertainty(each))


@given(histories(), st.integers(0, 7), st.floats(0, 64), SHARES)
def test_more_beside_a_launch_makes_it_less_certain(
    history: list[Trial], index: int, more_busy: float, more_of_devices: float
) -> None:
    if not history:
        return
    index %= len(history)
    before = with_crowding(history)
    observed = dict(history[index].observed)
    for name, more in (("other_busy_cpus", more_busy), ("other_device_share", more_of_devices)):
        value = observed.get(name)
        if isinstance(value, float):
            observed[name] = value + more
    crowded = [*history]
    crowded[index] = replace(history[index], observed=observed)
    newcomer = trial(99, begin=0.0, end=400.0, host="h")
    for after in (with_crowding(crowded), with_crowding([*crowded, newcomer])):
        for one, other in zip(before, after, strict=False):
            if one.measurement is not None:
                assert uncertainty(other) >= uncertainty(one) - 1e-12


def test_readers_of_a_store_believe_crowded_measurements_less(tmp_path: object) -> None:
    store = TrialStore(str(tmp_path))
    for each in (trial(1, **PROCESSORS), trial(2, begin=500.0, end=600.0)):
        for event in trial_events(each):
            store.append(replace(event, launch_id=f"l-{each.trial_id}"))
    read, _ = read_trials(str(tmp_path))
    log = TrialLog(str(tmp_path))
    log.refresh()
    for found in (read, list(store), log.trials(), [log.of_launch("l-t-1"), log.of_launch("l-t-2")]):
        assert [round(uncertainty(each), 2) for each in found if each is not None] == [0.69, 0.02]


@pytest.mark.parametrize(
    ("crowded", "faster", "is_claimed"), [(False, 2.0, True), (True, 2.0, False), (True, 6.0, True)]
)
def test_a_gain_from_crowded_measurements_is_claimed_if_larger_than_their_error(
    crowded: bool, faster: float, is_claimed: bool
) -> None:
    facts = PROCESSORS if crowded else {}
    measured = [
        [replace(trial(n, **facts).measurement, tokens_per_second=speed + n) for n in range(3)]  # type: ignore[type-var]
        for speed in (1000.0, 1000.0 * faster)
    ]
    believed = [[with_crowding([replace(trial(**facts), measurement=each)])[0] for each in side] for side in measured]
    sides = [Repeats.of({"a": n}, side, objective="tokens_per_second") for n, side in enumerate(believed)]
    assert compare(*sides, objective="tokens_per_second").claims_gain is is_claimed


@pytest.mark.parametrize("error", [0.02, None])
def test_a_crowded_trial_that_is_read_and_added_again_is_as_uncertain(tmp_path: Path, error: float | None) -> None:
    store = TrialStore(str(tmp_path))
    store.add(trial(error=error, **PROCESSORS))
    (once,) = store
    again = TrialStore(str(tmp_path / "copy"))
    again.add(once)
    (twice,) = again
    assert uncertainty(twice) == pytest.approx(uncertainty(once))


@pytest.mark.parametrize(("outside", "is_crowded"), [(None, True), (0.5, True), (0.02, False)])
def test_load_on_processors_counts_for_the_time_that_waits_for_them(outside: float | None, is_crowded: bool) -> None:
    """A training on devices that hardly leaves its steps waits for its devices."""
    launch = trial(devices_per_node=8, **PROCESSORS)
    assert launch.measurement is not None
    measurement = replace(launch.measurement, share_outside_steps=outside)
    assert (crowded_share(replace(launch, measurement=measurement)) > 0.0) is is_crowded
