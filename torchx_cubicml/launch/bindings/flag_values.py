"""The value of one flag in a script's arguments: read with its kind, and written in the form the user chose."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.argv import (
    Form,
    Occurrence,
    abbreviation_of,
    append,
    find_flag,
    flags_in,
    keys_in,
    looks_like_value,
    negation,
    replace,
    usual_form,
    write_value,
)
from torchx_cubicml.launch.bindings.spelling import same_value, spell_switch, switch_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.bindings.flag_place import FlagPlace
    from torchx_cubicml.records.trial import Value


def read_flag(args: Sequence[str], place: FlagPlace) -> Value:
    """Return the value of a flag; of several occurrences the last counts, as for argparse.

    Raises:
        LaunchError: the flag is absent and has no default, or carries no legal kind of value.
    """
    place = _as_typed(args, place)
    found = _find(args, place)
    if not found:
        return _absent(args, place)
    last = found[-1]
    if last.texts:
        return _meaning(last.texts, place)
    if place.is_switch:
        return last.form is Form.SWITCH
    if place.bare is not None and last.form is Form.SWITCH:
        return place.bare
    raise LaunchError(f"flag {place.flag} of {place.owner} has no value in the command")


def is_stated(args: Sequence[str], place: FlagPlace) -> bool:
    """Whether a flag is in the command, in any of its spellings."""
    return bool(_find(args, _as_typed(args, place)))


def write_flag(args: Sequence[str], place: FlagPlace, value: Value) -> tuple[str, ...]:
    """Return ``args`` with another value for a flag, in the form in which the user wrote it.

    Raises:
        LaunchError: the flag stands there more than once, or has no form for the value.
    """
    place = _as_typed(args, place)
    found = _find(args, place)
    spellings = [name for name in (place.flag, *place.aliases) if _find(args, changed(place, flag=name))]
    if len(found) > 1 or len(spellings) > 1:
        raise LaunchError(
            f"flag {place.flag} of {place.owner} stands {max(len(found), len(spellings))} times in the command; "
            "written once it can be set"
        )
    if place.absent is not None and same_value(value, place.absent):
        return replace(args, found[0], ()) if found else tuple(args)
    if not found:
        return append(args, _added(args, place, value))
    return replace(args, found[0], _rewritten(found[0], place, value))


def remove_flag(args: Sequence[str], place: FlagPlace) -> tuple[str, ...]:
    """Return ``args`` without a flag and its value."""
    args = tuple(args)
    for occurrence in reversed(_find(args, place)):
        args = replace(args, occurrence, ())
    return args


def _as_typed(args: Sequence[str], place: FlagPlace) -> FlagPlace:
    """Return the place under the spelling that stands last in the command, under the usual one where none does."""
    names = (place.flag, *place.aliases)
    if len(names) == 1:
        return place
    last = {name: found[-1].start for name in names if (found := _find(args, changed(place, flag=name)))}
    typed = max(last, key=lambda name: last[name], default=place.flag)
    return changed(place, flag=typed, aliases=tuple(name for name in names if name != typed))


def _find(args: Sequence[str], place: FlagPlace) -> list[Occurrence]:
    spelled = place.texts

    def is_value(word: str) -> bool:
        if place.is_switch or place.bare is not None:
            return switch_value(word) is not None or word in spelled
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
    if place.elsewhere:
        raise LaunchError(
            f"flag {place.flag} of {place.owner} is not in the command, where {place.elsewhere} may say it: "
            "write the flag out, or state its value in the space file"
        )
    if place.default is not None:
        return place.default
    if place.is_switch:
        return False
    there = ", ".join([*flags_in(args), *keys_in(args)]) or "none"
    raise LaunchError(
        f"flag {place.flag} of {place.owner} is not in the command and has no default; flags there: {there}"
    )


def _meaning(texts: Sequence[str], place: FlagPlace) -> Value:
    if place.count is None:
        return place.value(texts[0])
    entries = texts if len(texts) > 1 else _without_brackets(texts[0]).split(",")
    if len(entries) not in {1, place.count}:
        raise LaunchError(f"{place.flag} of {place.owner} has {len(entries)} entries; legal are 1 and {place.count}")
    values = tuple(map(place.value, entries))
    return values * place.count if len(values) == 1 else values


def _rewritten(found: Occurrence, place: FlagPlace, value: Value) -> tuple[str, ...]:
    if not found.texts:
        return _without_text(found, place, value)
    if isinstance(value, bool) and not place.words:
        texts = [spell_switch(value, like=found.texts[0])]
    elif isinstance(value, tuple):
        texts = _list_texts(found.texts, place, value)
    else:
        texts = [place.text(value)]
    return write_value(place.flag, texts, found.form)


def _without_text(found: Occurrence, place: FlagPlace, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool):
        return _switch(place, value, absent_means=place.default is True)
    if place.bare is not None and same_value(value, place.bare):
        return (place.flag,)
    return write_value(place.flag, [place.text(value)], Form.SEPARATE)


def _list_texts(typed: Sequence[str], place: FlagPlace, value: tuple[Value, ...]) -> list[str]:
    """Return a list as the user wrote it: words, one for all, in brackets, or joined."""
    entries = [place.text(entry) for entry in value]
    if len(typed) > 1:
        return entries
    bracketed = typed[0] != _without_brackets(typed[0])
    if len(set(value)) == 1 and "," not in typed[0] and not bracketed:
        return entries[:1]
    return [f"[{','.join(entries)}]" if bracketed or _is_key(place) else ",".join(entries)]


def _added(args: Sequence[str], place: FlagPlace, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool) and place.is_switch:
        return _switch(place, value, absent_means=not value)
    if place.bare is not None and same_value(value, place.bare):
        return (place.flag,)
    text = place.text(value)
    listed = isinstance(value, tuple) and _is_key(place)
    return write_value(place.flag, [f"[{text}]" if listed else text], usual_form(args))


def _is_key(place: FlagPlace) -> bool:
    return place.flag.endswith("=") and not place.flag.startswith("-")


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _switch(place: FlagPlace, value: bool, *, absent_means: bool) -> tuple[str, ...]:
    if value:
        return (place.flag,)
    return (negation(place.flag),) if absent_means or place.elsewhere else ()
