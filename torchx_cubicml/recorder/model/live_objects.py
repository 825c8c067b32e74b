"""Live objects of this process by type, found through the garbage collector.

A search takes tens of milliseconds and runs once or twice in a training.
"""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

T = TypeVar("T")

_SNAPSHOT_CLASSES = (
    ("torch.nn", "Module"),
    ("torch.utils.data", "DataLoader"),
    ("torch.distributed.device_mesh", "DeviceMesh"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase"),
    ("torch.distributed.pipelining.schedules", "_PipelineSchedule"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine"),
)


class LiveObjects:
    """Snapshot of the live objects of all classes that facts are read from, by one search and weak references."""

    def __init__(self) -> None:
        kinds = (_loaded(module, name) for module, name in _SNAPSHOT_CLASSES)
        self._kinds = frozenset(kind for kind in kinds if kind is not None)
        found: list[Any] = _walk(self._kinds)
        self._references: list[weakref.ref[Any]] = [*map(weakref.ref, found)]

    @contextmanager
    def as_source(self) -> Iterator[None]:
        """Make ``live_instances`` use this snapshot, for its classes, within the context."""
        token = _SNAPSHOT.set(self)
        try:
            yield
        finally:
            _SNAPSHOT.reset(token)

    def knows(self, kind: type) -> bool:
        """Return whether the snapshot covers a class."""
        return kind in self._kinds

    def living(self, kind: type[T]) -> list[T]:
        """Return the objects of a class in the snapshot that are still alive."""
        derived = _derived_from((kind,))
        objects = (reference() for reference in self._references)
        return [each for each in objects if each is not None and type(each) in derived]


_SNAPSHOT: ContextVar[LiveObjects | None] = ContextVar("survey", default=None)


def live_instances(kind: type[T]) -> list[T]:
    """Return every object of a class or its subclasses that the garbage collector tracks."""
    snapshot = _SNAPSHOT.get()
    return snapshot.living(kind) if snapshot is not None and snapshot.knows(kind) else _walk((kind,))


def live_instances_of(module: str, name: str) -> list[object]:
    """Return every live object of a class by its name; empty if its module is not loaded or has no such class.

    >>> live_instances_of("a.module.nobody.imports", "Thing")
    []
    """
    kind = _loaded(module, name)
    return live_instances(kind) if kind is not None else []


def _loaded(module: str, name: str) -> type | None:
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) else None


def _walk(kinds: Iterable[type[T]]) -> list[T]:
    derived = _derived_from(kinds)
    objects = gc.get_objects() if derived else []
    if derived and gc.get_freeze_count():  # gc.get_objects leaves out frozen objects
        objects += _reachable_from_frames({id(each) for each in objects})
    # By type and not by isinstance, which reads each object's __class__ and may make a lazy proxy load its target.
    return list(compress(objects, map(derived.__contains__, map(type, objects))))


def _reachable_from_frames(known: set[int]) -> list[object]:
    """Return the globals of all functions on the stack, and their attributes, except objects in ``known``.

    Local variables are left out: reading a frame's locals keeps their values alive until its function ends.
    """
    found: list[object] = []
    seen: set[int] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        values = list(frame.f_globals.values()) if id(frame.f_globals) not in seen else []
        seen.add(id(frame.f_globals))
        for value in values:
            for each in (value, *_attributes(value)):
                if id(each) not in known:
                    known.add(id(each))
                    found.append(each)
        frame = frame.f_back
    return found


def _attributes(value: object) -> list[object]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(attributes.values()) if isinstance(attributes, dict) else []


def _derived_from(kinds: Iterable[type]) -> set[type]:
    derived: set[type] = set(kinds)
    pending = list(derived)
    while pending:
        found: list[type] = type.__subclasses__(pending.pop())
        new = [each for each in found if each not in derived]
        derived.update(new)
        pending += new
    return derived
