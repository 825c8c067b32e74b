"""Registry of hooks: what each sets inside a job, which values it takes, and which program it serves.

A hook is one file, ``recorder/apply/<name>_hook.py``, with its specification and its code. It is found by the name of
its file, as an entry point is by its group: nothing below the recorder imports it otherwise. Loading the file loads
neither torch nor the rest of the recorder, which its code imports in the job.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

REFUSED, VALUES_REFUSED = "refused: ", "values refused: "
"""Beginnings of a hook's fact: it can set nothing in this program, or not the values of this launch."""

CHANGED = "after the change, "
"""Beginning of a refusal that only a launch with the change can find; a launch that only checks does not lift it."""

_PACKAGE, _ENDING = "torchx_cubicml.recorder.apply", "_hook"
_COUNTS = {"layer": "n_layers", "table": "n_embedding_tables"}


class HookSpec:
    """Specification of a hook: attributes of its class.

    Args:
        name: in a space file, and in the name of its file.
        sets: what it sets, in words.
        values: that it can set, in groups that do not mix, each with the default first; none where it sets numbers.
        takes: the same in words, where it sets numbers.
        default_share: the program's own share, for a hook of a number from 0 to below 1.
        per: what gets a value each, ``layer`` or ``table``; empty for one value of the job.
        parts: key of a space file that names the places which it sets, each with a value of its own (``mesh.tp``).
        fact: standard name of the fact under which its values are observed; empty for one with several places. A fact
            that changes the training is kept, whatever the name of the parameter.
        calls: functions, one of which the program must call; none for a hook that serves any program.
        marks: texts in lower case, one of which any source has that can name such a function, under whatever name.
        rivals: name in the source, in lower case -> why the hook may not serve a program with that name.
        offered: values that a starter space file offers.
        absent_under: observed facts of a program that has nothing for the hook to set.
    """

    name: ClassVar[str]
    sets: ClassVar[str]
    values: ClassVar[tuple[tuple[str | bool, ...], ...]] = ()
    takes: ClassVar[str] = ""
    default_share: ClassVar[float | None] = None
    per: ClassVar[str] = ""
    parts: ClassVar[str] = ""
    fact: ClassVar[str] = ""
    calls: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()
    rivals: ClassVar[Mapping[str, str]] = {}
    offered: ClassVar[tuple[str | bool, ...]] = ()
    absent_under: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def counted(cls) -> str:
        """Return the name of the fact that counts its values; empty for one value of the job."""
        return _COUNTS.get(cls.per, "")


@cache
def hook_names() -> tuple[str, ...]:
    """Return the names of all hooks, sorted. None is loaded.

    >>> hook_names()[:3]
    ('activation_checkpointing', 'fsdp', 'fsdp_precision')
    """
    from pkgutil import iter_modules

    found = (each.name for each in iter_modules(import_module(_PACKAGE).__path__))
    return tuple(sorted(name.removesuffix(_ENDING) for name in found if name.endswith(_ENDING)))


def hook_module(name: str) -> ModuleType:
    """Return the file of a hook as a module; its ``hook`` is the class."""
    return import_module(f"{_PACKAGE}.{name}{_ENDING}")


def hook_spec(place: str) -> type[HookSpec]:
    """Return the specification of the hook that sets a place; that of none for a hook of another release.

    >>> hook_spec("mesh.tp").name, hook_spec("fsdp").fact, hook_spec("of_the_future").fact
    ('mesh', 'sharding_strategy', '')
    """
    name = hook_of(place)
    spec: type[HookSpec] = hook_module(name).hook if name in hook_names() else HookSpec
    return spec


def hook_of(place: str) -> str:
    """Return the hook that sets a place: the name before the first dot.

    >>> hook_of("mesh.tp"), hook_of("fsdp")
    ('mesh', 'fsdp')
    """
    return place.partition(".")[0]


def hook_fact(hook: str) -> str:
    """Return the name of the fact that a hook made no change, with the reason."""
    return f"{hook}_hook"


def illegal_hook_fact(hook: str) -> str:
    """Return the name of the fact with the values of a hook that the program does not allow."""
    return f"{hook}_hook_illegal"
