from __future__ import annotations

import pytest

from torchx_cubicml.records.event import Event, EventKind, fold_events
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.store.event_groups import EventGroup, EventGroups, folded


def plan(launch_id: str) -> Event:
    return Event(kind=EventKind.PLANNED, launch_id=launch_id)


def started(trial_id: str, launch_id: str = "", **fields: object) -> Event:
    return Event(kind=EventKind.STARTED, trial_id=trial_id, launch_id=launch_id, **fields)


def test_events_that_share_an_id_are_one_group() -> None:
    events = {
        "/z/1": plan("l"),
        "/a/2": started("a", "l"),
        "/a/3": started("b", "m"),
        "/a/4": started("c", "m"),
        "/a/5": started("c", "l"),
        "/a/6": started("d"),
        "/a/7": plan("n"),
    }
    groups = EventGroups()
    numbers = groups.regroup([], events)
    assert [numbers[place] for place in events] == [0, 0, 0, 0, 0, 1, 2]
    assert [sorted(group.ids) for group in groups.by_number.values()] == [["a", "b", "c", "l", "m"], ["d"], ["n"]]
    assert groups.trials() == fold_events(events.values())
    assert [trial.trial_id for trial in groups.trials()] == ["a", "c", "b", "d", "n"]
    assert groups.with_id("m") is groups.by_number[0]
    assert groups.with_id("x") is None
    assert groups.joined_by([started("d", "x"), plan("n"), started("x")]) == {1, 2}
    assert groups.without_events({0, 1, 9}) == set()


def test_a_group_begins_with_the_first_object_of_each_trial() -> None:
    events = {"/s/3": started("b", "l"), "/s/2": started("a", "l"), "/s/1": started("x"), "/s/4": plan("l")}
    group = EventGroup.of({place: events[place] for place in ("/s/3", "/s/2", "/s/4")})
    assert [trial.trial_id for trial in group.trials] == ["a", "b"]
    assert group.firsts == ("/s/2", "/s/3")
    assert list(group.events) == ["/s/2", "/s/3", "/s/4"]
    assert EventGroup.of({"/s/4": plan("l"), "/s/2": started("", "l", sequence=1)}).firsts == ("/s/2",)


def test_a_regrouped_group_has_a_new_number() -> None:
    groups = EventGroups()
    groups.regroup([], {"/s/1": started("a"), "/s/2": started("b"), "/s/3": started("c")})
    numbers = groups.regroup([0, 2], {"/s/4": started("a", "l"), "/s/5": started("c", "l")})
    assert numbers == {"/s/1": 3, "/s/3": 3, "/s/4": 3, "/s/5": 3}
    assert sorted(groups.by_number) == [1, 3]
    assert groups.joined_by([plan("l"), started("b")]) == {1, 3}
    assert [trial.trial_id for trial in groups.trials()] == ["a", "b", "c"]


@pytest.mark.parametrize(("statistic", "rate"), [(None, 80.0), ("mean", 80.0), ("p50", 100.0)])
def test_throughputs_are_given_at_the_asked_statistic(statistic: str | None, rate: float) -> None:
    measurement = Measurement(
        tokens_per_second=80.0, step_time_s=(0.9, 1.0, 1.3), mean_step_time_s=1.25, statistic="mean"
    )
    event = started("a", measurement=measurement)
    groups = EventGroups(statistic=statistic)
    groups.regroup([], {"/s/1": event})
    for trials in (groups.trials(), folded([event], statistic)):
        assert [trial.measurement.tokens_per_second for trial in trials if trial.measurement] == [rate]
