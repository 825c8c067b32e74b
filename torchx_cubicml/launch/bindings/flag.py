"""Binding to a flag of the training script: finds, reads and replaces its value in argv."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.argv import (
    FlagForm,
    Occurrence,
    abbreviation_of,
    append,
    find_flag,
    flags_in,
    keys_in,
    looks_like_value,
    negation,
    positionals,
    usual_form,
    write_value,
)
from torchx_cubicml.launch.bindings.argv import (
    replace as replace_words,
)
from torchx_cubicml.launch.bindings.config_file import ConfigFileBinding
from torchx_cubicml.launch.bindings.spelling import read_scalar, same_value, spell, spell_switch, switch_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Scalar, Value
    from torchx_cubicml.space import Binding


def read_flag(args: Sequence[str], place: FlagQuery) -> Value:
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
        return last.form is FlagForm.SWITCH
    if place.bare is not None and last.form is FlagForm.SWITCH:
        return place.bare
    raise LaunchError(f"flag {place.flag} of {place.owner} has no value in the command")


def is_stated(args: Sequence[str], place: FlagQuery) -> bool:
    """Whether a flag is in the command, in any of its spellings."""
    return bool(_find(args, _as_typed(args, place)))


def write_flag(args: Sequence[str], place: FlagQuery, value: Value) -> tuple[str, ...]:
    """Return ``args`` with another value for a flag, in the form in which the user wrote it.

    Raises:
        LaunchError: the flag stands there more than once, or has no form for the value.
    """
    place = _as_typed(args, place)
    found = _find(args, place)
    spellings = [name for name in (place.flag, *place.aliases) if _find(args, replace(place, flag=name))]
    if len(found) > 1 or len(spellings) > 1:
        raise LaunchError(
            f"flag {place.flag} of {place.owner} stands {max(len(found), len(spellings))} times in the command; "
            "written once it can be set"
        )
    if place.absent is not None and same_value(value, place.absent):
        return replace_words(args, found[0], ()) if found else tuple(args)
    if not found:
        return append(args, _added(args, place, value))
    return replace_words(args, found[0], _rewritten(found[0], place, value))


def remove_flag(args: Sequence[str], place: FlagQuery) -> tuple[str, ...]:
    """Return ``args`` without a flag and its value."""
    args = tuple(args)
    for occurrence in reversed(_find(args, place)):
        args = replace_words(args, occurrence, ())
    return args


def _as_typed(args: Sequence[str], place: FlagQuery) -> FlagQuery:
    """Return the place under the spelling that stands last in the command, under the usual one where none does."""
    names = (place.flag, *place.aliases)
    if len(names) == 1:
        return place
    last = {name: found[-1].start for name in names if (found := _find(args, replace(place, flag=name)))}
    typed = max(last, key=lambda name: last[name], default=place.flag)
    return replace(place, flag=typed, aliases=tuple(name for name in names if name != typed))


def _find(args: Sequence[str], place: FlagQuery) -> list[Occurrence]:
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


def _absent(args: Sequence[str], place: FlagQuery) -> Value:
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


def _meaning(texts: Sequence[str], place: FlagQuery) -> Value:
    if place.count is None:
        return place.value(texts[0])
    entries = texts if len(texts) > 1 else _without_brackets(texts[0]).split(",")
    if len(entries) not in {1, place.count}:
        raise LaunchError(f"{place.flag} of {place.owner} has {len(entries)} entries; legal are 1 and {place.count}")
    values = tuple(map(place.value, entries))
    return values * place.count if len(values) == 1 else values


def _rewritten(found: Occurrence, place: FlagQuery, value: Value) -> tuple[str, ...]:
    if not found.texts:
        return _without_text(found, place, value)
    if isinstance(value, bool) and not place.words:
        texts = [spell_switch(value, like=found.texts[0])]
    elif isinstance(value, tuple):
        texts = _list_texts(found.texts, place, value)
    else:
        texts = [place.text(value)]
    return write_value(place.flag, texts, found.form)


def _without_text(found: Occurrence, place: FlagQuery, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool):
        return _switch(place, value, absent_means=place.default is True)
    if place.bare is not None and same_value(value, place.bare):
        return (place.flag,)
    return write_value(place.flag, [place.text(value)], FlagForm.SEPARATE)


def _list_texts(typed: Sequence[str], place: FlagQuery, value: tuple[Value, ...]) -> list[str]:
    """Return a list as the user wrote it: words, one for all, in brackets, or joined."""
    entries = [place.text(entry) for entry in value]
    if len(typed) > 1:
        return entries
    bracketed = typed[0] != _without_brackets(typed[0])
    if len(set(value)) == 1 and "," not in typed[0] and not bracketed:
        return entries[:1]
    return [f"[{','.join(entries)}]" if bracketed or _is_key(place) else ",".join(entries)]


def _added(args: Sequence[str], place: FlagQuery, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool) and place.is_switch:
        return _switch(place, value, absent_means=not value)
    if place.bare is not None and same_value(value, place.bare):
        return (place.flag,)
    text = place.text(value)
    listed = isinstance(value, tuple) and _is_key(place)
    return write_value(place.flag, [f"[{text}]" if listed else text], usual_form(args))


def _is_key(place: FlagQuery) -> bool:
    return place.flag.endswith("=") and not place.flag.startswith("-")


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _switch(place: FlagQuery, value: bool, *, absent_means: bool) -> tuple[str, ...]:
    if value:
        return (place.flag,)
    return (negation(place.flag),) if absent_means or place.elsewhere else ()


_FILE = ConfigFileBinding()


class FlagBinding:
    """A flag in any of its spellings; where it is not typed, the key of a config file that the command names."""

    def says(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> bool:
        """Whether it is in the command or in the file, or a default is known."""
        if self._is_left_to_file(launch, binding, wanted):
            return _FILE.says(launch, binding, _in_file(binding, wanted))
        place = _flag_place(launch, binding, wanted)
        return place.default is not None or is_stated(launch.script_args, place)

    def read(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> Value:
        """Return the value that it carries."""
        if self._is_left_to_file(launch, binding, wanted):
            return _FILE.read(launch, binding, _in_file(binding, wanted))
        return read_flag(launch.script_args, _flag_place(launch, binding, wanted))

    def write(self, launch: Launch, binding: Binding, wanted: BindingQuery, value: Value) -> Launch:
        """Write it in the form that the user chose."""
        place = _flag_place(launch, binding, wanted)
        if self._is_left_to_file(launch, binding, wanted):
            if not binding.flag_counts_more:
                return _FILE.write(launch, binding, wanted, value)
            place = replace(place, default=None, absent=None)  # what the file says is no default any more
        _FILE.refuse_beside_flag(launch, binding, wanted)
        args = write_flag(launch.script_args, place, value)
        return replace(launch, script_args=_with_companions(args, binding, place, value))

    def _is_left_to_file(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> bool:
        if not binding.file or binding.file_must_leave_open or not _FILE.is_named(launch, binding):
            return False
        return not is_stated(launch.script_args, _flag_place(launch, binding, wanted))


def _in_file(binding: Binding, wanted: BindingQuery) -> BindingQuery:
    return replace(wanted, default=None if wanted.default is None else binding.file_default)


def _with_companions(args: tuple[str, ...], binding: Binding, place: FlagQuery, value: Value) -> tuple[str, ...]:
    """Return ``args`` with the flags that must stand beside a value, and without those of other values."""
    wanted = {flag: text for known, beside in binding.companions if same_value(known, value) for flag, text in beside}
    for flag in dict.fromkeys(flag for _, beside in binding.companions for flag, _ in beside):
        beside = FlagQuery(flag=flag, owner=place.owner, other_flags=place.other_flags | {place.flag})
        if flag not in wanted:
            args = remove_flag(args, beside)
        elif not is_stated(args, beside):
            args = write_flag(args, beside, wanted[flag])
    return args


def _flag_place(launch: Launch, binding: Binding, wanted: BindingQuery) -> FlagQuery:
    elsewhere = _elsewhere(launch.script_args, binding.unless)
    default = None if elsewhere else wanted.default
    unsaid = next((value for value, text in binding.words if not text and same_value(value, default or ())), None)
    return FlagQuery(
        flag=binding.name,
        owner=wanted.owner,
        choices=wanted.choices,
        default=default,
        count=wanted.count,
        other_flags=wanted.flags - {binding.name, *binding.aliases},
        aliases=binding.aliases,
        words=binding.words,
        bare=binding.bare,
        absent=default if wanted.may_be_idle else unsaid,
        elsewhere=elsewhere,
    )


def _elsewhere(args: Sequence[str], patterns: Sequence[str]) -> str:
    """Return the flag or file in a command that brings other defaults, as one of ``patterns`` says."""
    words = [*flags_in(args), *positionals(args)]
    return next((word for word in words if any(fnmatchcase(word, pattern) for pattern in patterns)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagQuery:
    """A flag, and what is known of the value that it carries.

    Args:
        flag: its name with dashes, with a ``=`` at its end where only ``name=value`` counts.
        owner: whose place it is, for messages.
        choices: legal values, of one entry where there are several.
        default: what the script does without the flag; ``None`` where unknown.
        count: entries of a per-layer value; ``None`` for a single value.
        other_flags: flags that belong to others, so that none is taken for an abbreviation of this one.
        aliases: other spellings of the flag.
        words: values and the texts that say them, where these differ; an empty text is no text.
        bare: value that the flag says without one; ``None`` where it says none, or true.
        absent: value that is said by leaving the flag out; ``None`` where the default is written out.
        elsewhere: argument of the command that may say what the flag does not; empty where there is none.
    """

    flag: str
    owner: str
    choices: tuple[Scalar, ...] = ()
    default: Value | None = None
    count: int | None = None
    other_flags: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    words: tuple[tuple[Scalar, str], ...] = ()
    bare: Scalar | None = None
    absent: Value | None = None
    elsewhere: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether the flag may stand without a value, and is true then."""
        single = self.count is None and bool(self.choices) and not self.flag.endswith("=")
        return single and all(isinstance(choice, bool) for choice in self.choices)

    @property
    def texts(self) -> frozenset[str]:
        """The texts that say a legal value."""
        return frozenset(map(self.text, self.choices))

    def text(self, value: Value) -> str:
        """Return the text that says ``value`` after the flag."""
        if isinstance(value, tuple):
            return ",".join(map(self.text, value))
        return next((text for known, text in self.words if text and same_value(known, value)), spell(value))

    def value(self, text: str) -> Scalar:
        """Return what a text after the flag says.

        Raises:
            LaunchError: it is no legal kind of value.
        """
        said = [known for known, word in self.words if word and word == text]
        return said[0] if said else read_scalar(text, self.choices, where=self.flag)
