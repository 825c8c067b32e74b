"""Objects that are found, or passed over, by the search for live ones."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from torchx_cubicml.recorder.model import live_objects
from torchx_cubicml.recorder.model.live_objects import LiveObjects, live_instances, live_instances_of


class Thing:
    """What is searched for."""


class Left(Thing):
    pass


class Right(Thing):
    pass


class Both(Left, Right):
    pass


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("thing",)

    def __init__(self, thing: Thing) -> None:
        self.thing = thing


class Odd:
    """An object whose attributes are no dictionary."""

    __dict__ = 3  # type: ignore[assignment]


class Holder:
    def __init__(self, **values: object) -> None:
        vars(self).update(values)


def test_a_class_is_found_with_all_below_it() -> None:
    things = [Thing(), Left(), Right(), Both()]
    for kind in (Thing, Left, Right, Both):
        expected = {id(thing) for thing in things if isinstance(thing, kind)}
        assert {id(found) for found in live_instances(kind)} == expected


def test_a_class_is_known_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a.module")
    module.Thing, module.thing = Thing, Thing()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a.module", module)
    assert live_instances_of("a.module", "Thing") == [module.thing]  # type: ignore[attr-defined]
    assert live_instances_of("a.module", "thing") == []
    assert live_instances_of("a.module", "absent") == []


@pytest.mark.usefixtures("thawed")
def test_frozen_objects_are_found_from_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, held, slotted, deep = Thing(), Thing(), Thing(), Thing()
    values = {
        "plain": plain,
        "holder": Holder(held=held, again=held),
        "slotted": Slotted(slotted),
        "deep": Holder(holder=Holder(deep=deep)),
        "odd": Odd(),
    }
    for name, value in values.items():
        monkeypatch.setitem(globals(), f"a_{name}", value)
    gc.collect()
    gc.freeze()
    later = Left()
    assert gc.get_freeze_count() > 0
    found = live_instances(Thing)
    assert {*map(id, found)} == {id(plain), id(held), id(later)}
    assert len(found) == 3  # each once
    del slotted, deep


def test_without_frozen_objects_no_frame_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_objects, "_reachable_from_frames", lambda known: [1 / 0])
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    thing = Thing()
    assert live_instances(Thing) == [thing]
    monkeypatch.setattr(gc, "get_objects", lambda: 1 / 0)
    assert live_objects._walk(()) == []


@pytest.fixture
def surveyed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a.module")
    module.Left = Left  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a.module", module)
    classes = (("a.module", "Left"), ("a.module", "Absent"))
    monkeypatch.setattr(live_objects, "_SNAPSHOT_CLASSES", classes)


@pytest.mark.usefixtures("surveyed")
def test_a_survey_knows_its_classes_alone() -> None:
    before = Both()
    survey = LiveObjects()
    after = Both()
    assert survey.knows(Left)
    assert not survey.knows(Both)
    assert survey.living(Left) == survey.living(Both) == [before]
    assert survey.living(Right) == [before]
    with survey.as_source():
        assert live_instances(Left) == [before]
        assert {*map(id, live_instances(Both))} == {id(before), id(after)}
        with LiveObjects().as_source():
            assert len(live_instances(Left)) == 2
        assert live_instances(Left) == [before]
    assert len(live_instances(Left)) == 2


@pytest.mark.usefixtures("surveyed")
def test_a_survey_ends_with_an_error() -> None:
    survey, after = LiveObjects(), Left()
    with pytest.raises(ValueError, match="within"), survey.as_source():
        raise ValueError("within")
    assert live_instances(Left) == [after]
