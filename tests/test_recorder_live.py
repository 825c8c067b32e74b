from __future__ import annotations

from torchx_cubicml.recorder.live import live_instances, live_instances_of


class Base:
    pass


class Derived(Base):
    pass


def test_objects_are_found_by_their_class_while_they_live() -> None:
    one, other = Base(), Derived()
    assert sorted(map(id, live_instances(Base))) == sorted(map(id, (one, other)))
    assert live_instances(Derived) == [other]
    del other
    assert live_instances(Derived) == []


def test_a_class_that_is_absent_has_no_objects() -> None:
    assert live_instances_of("torchx_cubicml.recorder.live", "Absent") == []
    assert live_instances_of("a.module.nobody.imports", "Absent") == []
