"""Binding to a flag of the training script: find, read and replace its value in argv."""

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
    positionals,
    usual_form,
    write_value,
)
from torchx_cubicml.launch.bindings.argv import replace as replace_words
from torchx_cubicml.launch.bindings.config_file import ConfigFileBinding
from torchx_cubicml.launch.bindings.hydra import is_key, is_one_value, quoted_like, unquoted
from torchx_cubicml.launch.command_facts.source_literals import bare_name, declared_flags
from torchx_cubicml.records.argument_words import negation, with_underscores
from torchx_cubicml.space.spelling import read_scalar, same_value, spell, spell_switch, switch_value, texts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space import Binding


def read_flag(args: Sequence[str], query: FlagQuery) -> Value:
    """Return the value of a flag; the last of several occurrences counts, as in argparse.

    Raises:
        LaunchError: the flag is absent and has no default, or its value is of an illegal kind.
    """
    query = _as_typed(args, query)
    found = _find(args, query)
    if not found:
        return _value_if_absent(args, query)
    last = found[-1]
    if last.texts:
        return _parse_texts(last.texts, query)
    if query.is_switch:
        return last.form is FlagForm.SWITCH
    if query.bare is not None and last.form is FlagForm.SWITCH:
        return query.bare
    raise LaunchError(f"flag {query.flag} of {query.owner} has no value in the command")


def is_stated(args: Sequence[str], query: FlagQuery) -> bool:
    """Return whether a flag is in the command, in any of its spellings."""
    return bool(_find(args, _as_typed(args, query)))


def write_flag(args: Sequence[str], query: FlagQuery, value: Value) -> tuple[str, ...]:
    """Return ``args`` with another value for a flag, in the form in which the user wrote it.

    Raises:
        LaunchError: the flag occurs more than once, or has no form for the value.
    """
    query = _as_typed(args, query)
    found = _find(args, query)
    spellings = [name for name in (query.flag, *query.aliases) if _find(args, replace(query, flag=name))]
    if len(found) > 1 or len(spellings) > 1:
        raise LaunchError(
            f"flag {query.flag} of {query.owner} occurs {max(len(found), len(spellings))} times in the command; "
            "give it once"
        )
    if query.absent is not None and same_value(value, query.absent):
        return replace_words(args, found[0], ()) if found else tuple(args)
    if not found:
        return append(args, _added_words(args, query, value))
    return replace_words(args, found[0], _rewritten_words(found[0], query, value))


def remove_flag(args: Sequence[str], query: FlagQuery) -> tuple[str, ...]:
    """Return ``args`` without a flag and its value."""
    args = tuple(args)
    for occurrence in reversed(_find(args, query)):
        args = replace_words(args, occurrence, ())
    return args


def _as_typed(args: Sequence[str], query: FlagQuery) -> FlagQuery:
    """Return the query for the spelling that occurs last in the command; without one, for the usual spelling."""
    names = (query.flag, *query.aliases)
    last = {name: found[-1] for name in names if (found := _find(args, replace(query, flag=name)))}
    if not last:
        return query
    typed = max(last.values(), key=lambda found: found.start).flag
    others = tuple(name for name in names if with_underscores(name) != with_underscores(typed))
    return replace(query, flag=typed, aliases=others)


def _find(args: Sequence[str], query: FlagQuery) -> list[Occurrence]:
    spelled = query.texts
    if query.takes_list:
        return find_flag(args, query.flag, is_value=looks_like_value, most_values=len(args))

    def is_value(word: str) -> bool:
        if word in spelled or not query.may_be_bare:
            return word in spelled or looks_like_value(word)
        switch, is_doubtful = switch_value(word), word.lower() not in {"true", "false"}
        takes_value = query.takes_value if is_doubtful and looks_like_value(word) else None
        return switch is not None if takes_value is None else takes_value

    # Several words are read as a list only if each is a legal value, so that no positional is swallowed.
    if query.count is not None and query.count > 1:
        known = {*texts_of(True), *texts_of(False)} if bool in map(type, query.choices) else spelled
        lists = find_flag(args, query.flag, is_value=known.__contains__, most_values=query.count)
        if any(len(occurrence.texts) > 1 for occurrence in lists):
            return lists
    found = find_flag(args, query.flag, is_value=is_value)
    letters = "ftny" if query.may_be_bare else ""  # -cf is -c -f
    return [each for each in found if each.form is not FlagForm.ATTACHED or each.texts[0].lower() not in letters]


def _value_if_absent(args: Sequence[str], query: FlagQuery) -> Value:
    others = frozenset(map(with_underscores, query.other_flags))
    short = abbreviation_of(
        [word for word in args if with_underscores(word.partition("=")[0]) not in others], query.flag
    )
    if short is not None:
        raise LaunchError(f"{short} in the command may be short for {query.flag} of {query.owner}; write it in full")
    if query.elsewhere:
        raise LaunchError(
            f"flag {query.flag} of {query.owner} is not in the command, and {query.elsewhere} may set it: "
            "add the flag, or state its value in the space file"
        )
    if query.default is not None:
        return query.default
    if query.is_switch:
        return False
    there = ", ".join([*flags_in(args), *keys_in(args)]) or "none"
    raise LaunchError(
        f"flag {query.flag} of {query.owner} is not in the command and has no default; flags there: {there}"
    )


def _parse_texts(texts: Sequence[str], query: FlagQuery) -> Value:
    if query.count is None:
        return query.value(_single_text(texts[0], query) if is_key(query.flag) else " ".join(texts))
    entries = texts if len(texts) > 1 else _without_brackets(texts[0]).split(",")
    if len(entries) not in {1, query.count}:
        raise LaunchError(f"{query.flag} of {query.owner} has {len(entries)} entries; it must have 1 or {query.count}")
    values = tuple(map(query.value, entries))
    return values * query.count if len(values) == 1 else values


def _single_text(text: str, query: FlagQuery) -> str:
    """Return the text of the one value of a ``key=value`` argument, without quotes.

    Raises:
        LaunchError: the argument has several values, takes its value from elsewhere, or may be no switch.
    """
    is_switch = bool in map(type, query.choices) and switch_value(unquoted(text)) is not None
    if is_switch and text.lower() not in {"true", "false", "1", "0"}:  # Hydra reads no and 'false' as texts
        raise LaunchError(f"{query.flag} of {query.owner} is {text!r:.60} in the command; write true or false")
    if text in query.texts or is_one_value(text):
        return text if text in query.texts else unquoted(text)
    raise LaunchError(
        f"{query.flag} of {query.owner} is {text!r:.60} in the command: a sweep or a reference has no value to change"
    )


def _rewritten_words(found: Occurrence, query: FlagQuery, value: Value) -> tuple[str, ...]:
    if not found.texts:
        return _rewritten_switch(found, query, value)
    if isinstance(value, tuple):
        texts = _list_texts(found.texts, query, value)
    else:
        texts = query.words_of(value) if query.takes_list else [query.text(value, like=unquoted(found.texts[0]))]
    if is_key(query.flag) and len(texts) == 1:
        texts = [quoted_like(texts[0], found.texts[0])]
    return write_value(query.flag, texts, FlagForm.SEPARATE if query.takes_list else found.form)


def _rewritten_switch(found: Occurrence, query: FlagQuery, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool):
        return _switch_words(query, value, absent_means=query.default is True)
    if query.bare is not None and same_value(value, query.bare):
        return (query.flag,)
    return write_value(query.flag, [query.text(value)], FlagForm.SEPARATE)


def _list_texts(typed: Sequence[str], query: FlagQuery, value: tuple[Value, ...]) -> list[str]:
    """Return the texts of a list in the user's form: several words, one word for all, in brackets, or joined."""
    like = _without_brackets(typed[0]).partition(",")[0]
    entries = [query.text(entry, like=like) for entry in value]
    if len(typed) > 1 or query.takes_list:
        return entries
    bracketed = typed[0] != _without_brackets(typed[0])
    if len(set(value)) == 1 and "," not in typed[0] and not bracketed:
        return entries[:1]
    return [f"[{','.join(entries)}]" if bracketed or is_key(query.flag) else ",".join(entries)]


def _added_words(args: Sequence[str], query: FlagQuery, value: Value) -> tuple[str, ...]:
    if isinstance(value, bool) and query.is_switch and not query.takes_value:
        return _switch_words(query, value, absent_means=not value)
    if query.bare is not None and same_value(value, query.bare):
        return (query.flag,)
    if query.takes_list:
        return write_value(query.flag, query.words_of(value), FlagForm.SEPARATE)
    text = query.text(value)
    listed = isinstance(value, tuple) and is_key(query.flag)
    return write_value(query.flag, [f"[{text}]" if listed else text], usual_form(args))


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _switch_words(query: FlagQuery, value: bool, *, absent_means: bool) -> tuple[str, ...]:
    if value:
        return (query.flag,)
    return (negation(query.flag),) if absent_means or query.elsewhere else ()


_FILE_BINDING = ConfigFileBinding()


class FlagBinding:
    """Binding to a flag in any of its spellings, or to a key of a named config file if the flag is not typed."""

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the command or the file states a value, or a default is known."""
        if self.is_left_to_file(launch, binding, query):
            return _FILE_BINDING.says(launch, binding, _file_query(binding, query))
        flag_query = _flag_query(launch, binding, query)
        return flag_query.default is not None or is_stated(launch.script_args, flag_query)

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the value of the flag, or of the file."""
        if self.is_left_to_file(launch, binding, query):
            return _FILE_BINDING.read(launch, binding, _file_query(binding, query))
        return read_flag(launch.script_args, _flag_query(launch, binding, query))

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with another value, written in the form that the user chose."""
        flag_query = _flag_query(launch, binding, query)
        if self.is_left_to_file(launch, binding, query):
            if not binding.flag_overrides_file:
                return _FILE_BINDING.write(launch, binding, query, value)
            flag_query = replace(flag_query, absent=None)  # without the flag the file's value counts
        _FILE_BINDING.refuse_beside_flag(launch, binding, query)
        args = write_flag(launch.script_args, flag_query, value)
        return replace(launch, script_args=_with_companions(args, binding, flag_query, value))

    def is_left_to_file(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the flag is not typed, and a config file that the command names may state the value."""
        if not binding.file or binding.file_must_be_auto or not _FILE_BINDING.is_named(launch, binding):
            return False
        return not self.is_typed(launch, binding, query)

    def is_typed(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the flag is in the command, in any of its spellings."""
        return is_stated(launch.script_args, _flag_query(launch, binding, query))


def _file_query(binding: Binding, query: BindingQuery) -> BindingQuery:
    return replace(query, default=None if query.default is None else binding.file_default)


def _with_companions(args: tuple[str, ...], binding: Binding, query: FlagQuery, value: Value) -> tuple[str, ...]:
    """Return ``args`` with the flags that a value requires, and without those that only other values require."""
    required = {flag: text for known, beside in binding.companions if same_value(known, value) for flag, text in beside}
    for flag in dict.fromkeys(flag for _, beside in binding.companions for flag, _ in beside):
        beside = FlagQuery(flag=flag, owner=query.owner, other_flags=query.other_flags | {query.flag})
        if flag not in required:
            args = remove_flag(args, beside)
        elif not is_stated(args, beside):
            args = write_flag(args, beside, required[flag])
    return args


def _flag_query(launch: Launch, binding: Binding, query: BindingQuery) -> FlagQuery:
    elsewhere = _source_of_defaults(launch.script_args, binding.unless)
    default = None if elsewhere else query.default
    omitted = next((value for value, text in binding.words if not text and same_value(value, default or ())), None)
    return FlagQuery(
        flag=binding.name,
        owner=query.owner,
        choices=query.choices,
        default=default,
        count=query.count,
        other_flags=query.flags - {binding.name, *binding.aliases},
        aliases=binding.aliases,
        takes_list=binding.takes_list,
        words=binding.words,
        bare=binding.bare,
        absent=default if query.is_conditional else omitted,
        elsewhere=elsewhere,
        launch=launch,
    )


def _source_of_defaults(args: Sequence[str], patterns: Sequence[str]) -> str:
    """Return the first flag or file in a command that sets other defaults, by ``patterns``; empty without one."""
    words = [*flags_in(args), *positionals(args)]
    return next((word for word in words if any(fnmatchcase(word, pattern) for pattern in patterns)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagQuery:
    """Query for the value of a flag.

    Args:
        flag: its name with dashes; a name that ends in ``=`` matches ``name=value`` only.
        owner: the parameter or fact that has the value, for messages.
        choices: legal values; for a per-layer value, of one entry.
        default: the script's value without the flag; ``None`` if unknown.
        count: entries of a per-layer value; ``None`` for a single value.
        other_flags: other flags of the space, so that none is taken for an abbreviation of this one.
        aliases: other spellings of the flag.
        takes_list: whether several words may follow the flag; together, with blanks between, they are one value.
        words: values and their texts, where these differ; an empty text means no text.
        bare: value of the flag without a text; ``None`` if it has none, or is a switch.
        absent: value expressed by leaving the flag out; ``None`` if the default is written out.
        elsewhere: argument of the command that may set the value in place of the flag; empty without one.
        launch: command whose source may declare the flag; ``None`` where it is not asked.
    """

    flag: str
    owner: str
    choices: tuple[Scalar, ...] = ()
    default: Value | None = None
    count: int | None = None
    other_flags: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    takes_list: bool = False
    words: tuple[tuple[Scalar, str], ...] = ()
    bare: Scalar | None = None
    absent: Value | None = None
    elsewhere: str = ""
    launch: Launch | None = None

    @property
    def takes_value(self) -> bool | None:
        """Return whether the program's parser takes a word after the flag; ``None`` where its source does not tell."""
        declared = {} if self.launch is None else declared_flags(self.launch)
        found = [declared[name] for name in map(bare_name, (self.flag, *self.aliases)) if name in declared]
        return found[0].takes_value if found else None

    @property
    def may_be_bare(self) -> bool:
        """Return whether the flag may stand without a value."""
        return self.is_switch or self.bare is not None

    @property
    def is_switch(self) -> bool:
        """Return whether the flag may stand without a value, which then means true."""
        single = self.count is None and bool(self.choices) and not self.flag.endswith("=")
        return single and all(isinstance(choice, bool) for choice in self.choices)

    @property
    def texts(self) -> frozenset[str]:
        """Texts of the legal values."""
        return frozenset(map(self.text, self.choices))

    def text(self, value: Value, *, like: str = "") -> str:
        """Return the text of ``value`` after the flag; that of a switch goes with the word ``like`` that is typed."""
        if isinstance(value, tuple):
            return ",".join(map(self.text, value))
        stated = next((text for known, text in self.words if text and same_value(known, value)), "")
        switch = switch_value(stated or spell(value)) if stated or isinstance(value, bool) else None
        if switch is None or switch_value(like) is None or like in self.texts:
            return stated or spell(value)
        return spell_switch(switch, like=like)

    def words_of(self, value: Value) -> list[str]:
        """Return the words of ``value`` after the flag."""
        entries = value if isinstance(value, tuple) else (value,)
        return " ".join(map(self.text, entries)).split() if self.takes_list else [self.text(value)]

    def value(self, text: str) -> Scalar:
        """Return the value of a text after the flag.

        Raises:
            LaunchError: the text is no legal kind of value.
        """
        matches = [known for known, word in self.words if word and word == text]
        if not matches and text not in self.texts and (switch := switch_value(text)) is not None:
            matches = [known for known, word in self.words if switch_value(word) is switch]
        return matches[0] if matches else read_scalar(text, self.choices, where=self.flag)
