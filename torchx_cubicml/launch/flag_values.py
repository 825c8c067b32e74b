"""The value of one flag in a script's arguments: read with its kind, and written in the form the user chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.script_args import (
    Form,
    Occurrence,
    abbreviation_of,
    append,
    find_flag,
    flags_in,
    looks_like_value,
    negation,
    replace,
    usual_form,
    write_value,
)
from torchx_cubicml.launch.spelling import read_scalar, spell, spell_switch, switch_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.trial import Scalar, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagPlace:
    """A flag, and what is known of the value that it carries.

    Args:
        flag: its name with dashes.
        owner: whose place it is, for messages.
        choices: legal values, of one entry where there are several.
        default: what the script does without the flag; ``None`` where unknown.
        count: entries of a per-layer value; ``None`` for a single value.
        other_flags: flags that belong to others, so that none is taken for an abbreviation of this one.
    """

    flag: str
    owner: str
    choices: tuple[Scalar, ...] = ()
    default: Value | None = None
    count: int | None = None
    other_flags: frozenset[str] = frozenset()

    @property
    def is_switch(self) -> bool:
        """Whether the flag may stand without a value."""
        single = self.count is None and bool(self.choices)
        return single and all(isinstance(choice, bool) for choice in self.choices)


def read_flag(args: Sequence[str], place: FlagPlace) -> Value:
    """Return the value of a flag; of several occurrences the last counts, as for argparse.

    Raises:
        LaunchError: the flag is absent and has no default, or carries no legal kind of value.
    """
    found = _find(args, place)
    if not found:
        return _absent(args, place)
    last = found[-1]
    if last.texts:
        return _meaning(last.texts, place)
    if place.is_switch:
        return last.form is Form.SWITCH
    raise LaunchError(f"flag {place.flag} of {place.owner} has no value in the command")


def write_flag(args: Sequence[str], place: FlagPlace, value: Value) -> tuple[str, ...]:
    """Return ``args`` with another value for a flag, in the form in which the user wrote it.

    Raises:
        LaunchError: the flag stands there more than once, or has no form for the value.
    """
    found = _find(args, place)
    if len(found) > 1:
        raise LaunchError(
            f"flag {place.flag} of {place.owner} stands {len(found)} times in the command; written once it can be set"
        )
    if not found:
        return append(args, _added(args, place, value))
    return replace(args, found[0], _rewritten(found[0], place, value))


def _find(args: Sequence[str], place: FlagPlace) -> list[Occurrence]:
    spelled = frozenset(map(spell, place.choices))

    def is_value(word: str) -> bool:
        if place.is_switch:
            return switch_value(word) is not None
        return looks_like_value(word) or word in spelled

    # One word per entry is read as a list only where each is a legal value, so that no positional is swallowed.
    if place.count is not None and place.count > 1:
        lists = find_flag(args, place.flag, is_value=spelled.__contains__, most_values=place.count)
        if any(len(occurrence.texts) > 1 for occurrence in lists):
            return lists
    return find_flag(args, place.flag, is_value=is_value)


def _absent(args: Sequence[str], place: FlagPlace) -> Value:
    short = abbreviation_of([word for word in args if word.partition("=")[0] not in place.other_flags], place.flag)
    if short is not None:
        raise LaunchError(f"{short} in the command may stand for {place.flag} of {place.owner}: write it in full")
    if place.default is not None:
        return place.default
    if place.is_switch:
        return False
    there = ", ".join(flags_in(args)) or "none"
    raise LaunchError(
        f"flag {place.flag} of {place.owner} is not in the command and has no default; flags there: {there}"
    )


def _meaning(texts: Sequence[str], place: FlagPlace) -> Value:
    if place.count is None:
        return read_scalar(texts[0], place.choices, where=place.flag)
    entries = texts if len(texts) > 1 else texts[0].split(",")
    if len(entries) not in {1, place.count}:
        raise LaunchError(f"{place.flag} of {place.owner} has {len(entries)} entries; legal are 1 and {place.count}")
    values = tuple(read_scalar(entry, place.choices, where=place.flag) for entry in entries)
    return values * place.count if len(values) == 1 else values


def _rewritten(found: Occurrence, place: FlagPlace, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool):
        if found.texts:
            return write_value(place.flag, [spell_switch(value, like=found.texts[0])], found.form)
        return _switch(place, value, absent_means=place.default is True)
    if isinstance(value, tuple) and len(found.texts) > 1:
        return write_value(place.flag, [spell(entry) for entry in value], found.form)
    if isinstance(value, tuple) and len(set(value)) == 1 and "," not in found.texts[0]:
        return write_value(place.flag, [spell(value[0])], found.form)  # one for all, as the user wrote it
    return write_value(place.flag, [spell(value)], found.form)


def _added(args: Sequence[str], place: FlagPlace, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool):
        return _switch(place, value, absent_means=not value)
    return write_value(place.flag, [spell(value)], usual_form(args))


def _switch(place: FlagPlace, value: bool, *, absent_means: bool) -> tuple[str, ...]:
    if value:
        return (place.flag,)
    return (negation(place.flag),) if absent_means else ()
