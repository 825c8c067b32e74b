"""Commented parameters of a starter space file: arguments of unknown meaning that the user may want to tune."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.meanings import may_change_speed_alone
from torchx_cubicml.cli.starter.toml_text import toml
from torchx_cubicml.launch.bindings.spelling import number, switch_value
from torchx_cubicml.space.expression import is_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchx_cubicml.cli.starter.script_flag import ScriptFlag
    from torchx_cubicml.records.values import Scalar

_MAX_OFFERS = 8


def offered_flags(flags: Sequence[ScriptFlag]) -> list[ScriptFlag]:
    """Return the flags and keys that may change the speed alone, as far as their names and values tell."""
    found = [
        flag
        for flag in flags
        if not flag.meaning
        and not flag.evidence
        and not flag.destination
        and not flag.file
        and flag.value
        and may_change_speed_alone(flag.name, flag.value, is_typed=flag.present is not None)
    ]
    return sorted(found, key=lambda flag: flag.present is None)[:_MAX_OFFERS]


def offer_lines(flags: Sequence[ScriptFlag], *, taken: Collection[str]) -> list[str]:
    """Return the commented tables of offered flags; none without one.

    Args:
        flags: from ``offered_flags``.
        taken: names that the file has.
    """
    lines: list[str] = []
    used = set(taken)
    for flag in flags:
        name = _name(flag.name, used)
        if not name:
            continue
        used.add(name)
        choices = [text if (value := _value(text)) is None else value for text in flag.choices]
        texts = map(toml, choices or _choices(flag.value or ""))
        lines += [f"[parameters.{name}]", f"choices = [{', '.join(texts)}]"]
        lines.append(f"flag = {toml(flag.name)}")
        default = _value(flag.default) if flag.default is not None else None
        lines += [f"default = {toml(default)} # if the command does not set it"] if default is not None else []
    if not lines:
        return []
    head = "Of unknown meaning. Uncomment what changes only the speed, and list the values to try:"
    return [f"# {line}" for line in (head, *lines)]


def _name(flag: str, used: Collection[str]) -> str:
    """Return a parameter's name from the last part of a flag, or from all of it; empty where neither is a free name."""
    whole = flag.strip("-+=").replace("-", "_").replace(".", "_")
    last = flag.strip("-+=").rpartition(".")[2].replace("-", "_")
    return next((name for name in (last, whole) if is_name(name) and len(name) <= 64 and name not in used), "")


def _choices(text: str) -> list[Scalar]:
    value = _value(text)
    if isinstance(value, bool):
        return [False, True]
    count = value if isinstance(value, int) else 0
    return sorted({max(count // 2, 1), count, max(2 * count, 1)}) if count else [0, 1, 2]


def _value(text: str) -> Scalar | None:
    value = number(text)
    return switch_value(text) if value is None else value
