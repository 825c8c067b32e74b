"""Finds what is alive in this process by its type; tens of milliseconds, for once or twice in a training."""

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

_SURVEYED = (
    ("torch.nn", "Module"),
    ("torch.utils.data", "DataLoader"),
    ("torch.distributed.device_mesh", "DeviceMesh"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase"),
    ("torch.distributed.pipelining.schedules", "_PipelineSchedule"),
)


class LiveObjects:
    """What was alive at one moment of the classes that facts are read from, in one walk; it keeps nothing alive."""

    def __init__(self) -> None:
        kinds = (_loaded(module, name) for module, name in _SURVEYED)
        self._kinds = frozenset(kind for kind in kinds if kind is not None)
        found: list[Any] = _walk(self._kinds)
        self._found: list[weakref.ref[Any]] = [*map(weakref.ref, found)]

    @contextmanager
    def in_place_of_walks(self) -> Iterator[None]:
        """Answer what is asked for within, where it is of these classes."""
        token = _SURVEY.set(self)
        try:
            yield
        finally:
            _SURVEY.reset(token)

    def knows(self, kind: type) -> bool:
        """Return whether this class was looked for."""
        return kind in self._kinds

    def living(self, kind: type[T]) -> list[T]:
        """Return what was found of a class and lives still."""
        derived = _derived_from((kind,))
        living = (reference() for reference in self._found)
        return [each for each in living if each is not None and type(each) in derived]


_SURVEY: ContextVar[LiveObjects | None] = ContextVar("survey", default=None)


def live_instances(kind: type[T]) -> list[T]:
    """Return every object of a class, or of one derived from it, that the garbage collector knows."""
    survey = _SURVEY.get()
    return survey.living(kind) if survey is not None and survey.knows(kind) else _walk((kind,))


def live_instances_of(module: str, name: str) -> list[object]:
    """Return every live object of a class that may be absent, and that nobody has used where its module is not loaded.

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
    if derived and gc.get_freeze_count():  # what was frozen is told of no more
        objects += _in_use({id(each) for each in objects})
    # By type and not by isinstance, which asks each object, and a lazy one may begin to load what it stands for.
    return list(compress(objects, map(derived.__contains__, map(type, objects))))


def _in_use(known: set[int]) -> list[object]:
    """Return what the modules of the functions under way hold, and the attributes of that; ``known`` left out.

    Not the functions' own variables: until a function ends, Python keeps alive whatever they held when it was asked.
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
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(held.values()) if isinstance(held, dict) else []


def _derived_from(kinds: Iterable[type]) -> set[type]:
    derived: set[type] = set(kinds)
    waiting = list(derived)
    while waiting:
        found: list[type] = type.__subclasses__(waiting.pop())
        new = [each for each in found if each not in derived]
        derived.update(new)
        waiting += new
    return derived
