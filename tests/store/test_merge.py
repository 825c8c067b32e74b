from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.event import Event, EventKind, fold_events
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.compaction import compact
from torchx_cubicml.store.digest_key import digest_keys, made_digest_key
from torchx_cubicml.store.merge import merge_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchx_cubicml.records.trial import Trial

IDS = ("a", "b", "c")


def event(trial_id: str, attempt: int, sequence: int, speed: float) -> Event:
    return Event(
        kind=EventKind.MEASURED,
        trial_id=trial_id,
        attempt=(0, attempt),
        sequence=sequence,
        writer="rank0",
        config={"micro_batch_size": attempt + 1},
        measurement=Measurement(samples_per_second=speed),
    )


def events_of(numbers: Iterable[int]) -> list[Event]:
    """Return one event for each number, its content a function of the number: events of several stores agree."""
    return [event(IDS[n % 3], n // 3 % 2, n // 6 % 3, 1.0 + n // 18) for n in sorted(numbers)]


UNIVERSE = range(18)  # each a key of its own
VERSIONS = range(54)  # three versions of each key
NUMBERS, WITH_VERSIONS = st.frozensets(st.sampled_from(UNIVERSE)), st.frozensets(st.sampled_from(VERSIONS))


@pytest.fixture(scope="module")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TrialStore]:
    """Return a function that makes a store of its own with some events, under names of their own."""
    numbers = count()

    def make(events: Iterable[Event] = ()) -> TrialStore:
        store = TrialStore(str(tmp_path_factory.mktemp("store") / "store"))
        for each in events:
            name = f"20260102T000000.000000Z-{next(numbers):016x}.json"
            store.folder.publish("2026-01-02", name, json.dumps(each.to_json()).encode())
        return store

    return make


def contents(store: TrialStore) -> dict[str, set[str]]:
    """Return the content of the events of each trial, without trust levels."""
    found: dict[str, set[str]] = {}
    for each in store.events():
        text = json.dumps(replace(each, trust=Trust.OWN).to_json(), sort_keys=True)
        found.setdefault(each.trial_id, set()).add(text)
    return found


def folded(events: Iterable[Event]) -> dict[str, Trial]:
    return {trial.trial_id: trial for trial in fold_events(events)}


@settings(max_examples=25)
@given(NUMBERS, NUMBERS)
def test_a_merge_is_the_union_in_either_order_and_again(new_store, one: frozenset[int], other: frozenset[int]) -> None:
    a, b, target, reverse = (new_store(events) for events in (events_of(one), events_of(other), (), ()))
    before = contents(b)
    for each, order in ((target, (a, b)), (reverse, (b, a))):
        for source in order:
            merge_into(each, source, trust=Trust.OWN)
    union = folded(events_of(one | other))
    assert folded(target.events()) == folded(reverse.events()) == union, "every trial once, nothing lost"
    places = set(target.folder.list_objects().places())
    for source in (a, b):
        again = merge_into(target, source, trust=Trust.OWN)
        assert again.new == again.completed == again.differing == ()
    assert set(target.folder.list_objects().places()) == places
    assert contents(b) == before, "a source stays as it is"


@settings(max_examples=25)
@given(WITH_VERSIONS, WITH_VERSIONS)
def test_what_the_target_holds_is_never_overwritten(new_store, one: frozenset[int], other: frozenset[int]) -> None:
    target, source = new_store(events_of(one)), new_store(events_of(other))
    before = dict(target.folder.read(target.folder.list_objects().places()))
    result = merge_into(target, source, trust=Trust.TEAM)
    after = dict(target.folder.read(target.folder.list_objects().places()))
    assert {place: after[place] for place in before} == before
    # A version that the source lacks decides its key; else the source's versions are added.
    own = {number % 18 for number in one - other}
    expected = one | {number for number in other if number % 18 not in own}
    assert contents(target) == contents(new_store(events_of(expected)))
    assert set(result.differing) == {IDS[number % 3] for number in other - one if number % 18 in own}


@settings(max_examples=15)
@given(WITH_VERSIONS, WITH_VERSIONS, st.integers(0, 20))
def test_an_interrupted_merge_is_completed_by_another(
    new_store, one: frozenset[int], other: frozenset[int], limit: int
) -> None:
    whole, broken = new_store(events_of(one)), new_store(events_of(one))
    source = new_store(events_of(other))
    merge_into(whole, source, trust=Trust.TEAM)
    publish, left = broken.folder.publish, iter(range(limit))

    def failing(day: str, name: str, data: bytes) -> None:
        if next(left, None) is None:
            raise StoreError("the disk is full")
        publish(day, name, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broken.folder, "publish", failing)
        with suppress(StoreError):
            merge_into(broken, source, trust=Trust.TEAM)
    merge_into(broken, source, trust=Trust.TEAM)
    assert contents(broken) == contents(whole)
    assert folded(broken.events()) == folded(whole.events())


@pytest.mark.parametrize("given_level", Trust)
@pytest.mark.parametrize("own_level", Trust)
def test_a_trial_is_trusted_no_more_than_its_source(new_store, own_level: Trust, given_level: Trust) -> None:
    source, target = new_store([replace(event("a", 0, 0, 1.0), trust=own_level)]), new_store()
    merge_into(target, source, trust=given_level)
    (trial,) = target
    order = list(Trust)
    assert trial.trust is max(own_level, given_level, key=order.index)


def test_the_lowest_level_of_its_events_is_that_of_a_trial(new_store) -> None:
    events = [event("a", 0, 0, 1.0), event("a", 0, 1, 2.0)]
    target = new_store(events[:1])
    merge_into(target, new_store(events), trust=Trust.TEAM)
    (trial,) = target
    assert (trial.trust, trial.measurement.samples_per_second) == (Trust.TEAM, 2.0)


def test_a_public_store_changes_no_trial_of_ones_own(new_store) -> None:
    own = event("a", 0, 0, 1.0)
    forged = Event(kind=EventKind.ENDED, trial_id="a", attempt=(9, 0), state=State.COMPLETED, config={"x": 1})
    target = new_store([own])
    result = merge_into(target, new_store([forged, event("b", 0, 0, 3.0)]), trust=Trust.PUBLIC)
    trials = {trial.trial_id: trial for trial in target}
    assert trials["a"] == next(iter(fold_events([own])))
    assert (result.new, result.differing) == (("b",), ("a",))


def test_compacted_events_and_unknown_fields_are_copied(new_store) -> None:
    source, target = new_store(events_of(UNIVERSE)), new_store()
    later = {**event("a", 0, 5, 1.0).to_json(), "of_a_later_release": {"x": [1]}}
    source.folder.publish("2026-01-02", "20260102T000001.000000Z-0123456789abcdef.json", json.dumps(later).encode())
    compact(source, before="2026-02-01")
    merge_into(target, source, trust=Trust.PUBLIC)
    assert contents(target) == contents(source)
    (kept,) = [each for each in target.events() if each.sequence == 5]
    assert kept.extra == {"of_a_later_release": {"x": [1]}}
    assert merge_into(target, source, trust=Trust.PUBLIC).n_known == 3


def test_names_that_are_taken_or_odd_overwrite_nothing(new_store) -> None:
    name = "20260102T000000.000000Z-0123456789abcdef.json"
    one, other, target = new_store(), new_store(), new_store()
    for store, speed in ((one, 1.0), (other, 2.0)):
        data = json.dumps(event(f"t{speed:g}", 0, 0, speed).to_json()).encode()
        store.folder.publish("2026-01-02", name, data)
    odd = json.dumps(event("odd", 0, 0, 3.0).to_json()).encode()
    other.folder.publish("nightly", "x y.json", odd)
    for source in (one, other):
        merge_into(target, source, trust=Trust.TEAM)
    assert {trial.trial_id for trial in target} == {"t1", "t2", "odd"}
    assert not any("x y" in place for place in target.folder.list_objects().places())


def test_unreadable_objects_are_told(new_store) -> None:
    source, target = new_store([event("a", 0, 0, 1.0)]), new_store()
    source.folder.publish("2026-01-02", "broken.json", b"{")
    result = merge_into(target, source, trust=Trust.TEAM)
    assert result.new == ("a",)
    assert len(result.warnings) == 1
    assert "broken.json" in result.warnings[0]


@pytest.mark.parametrize(("trust", "is_shared"), [(Trust.OWN, True), (Trust.TEAM, False)])
def test_keys_of_digests_come_along(new_store, trust: Trust, is_shared: bool) -> None:
    source, target = new_store([event("a", 0, 0, 1.0)]), new_store()
    key = made_digest_key(source.url)
    for _ in range(2):
        merge_into(target, source, trust=trust)
    keys = digest_keys(target.url)
    assert key in keys
    assert len(keys) == (1 if is_shared else 2)
    assert (keys[0] == key) is is_shared, "new digests are made with a key of one's own"
