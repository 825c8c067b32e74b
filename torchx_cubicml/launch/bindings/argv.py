"""Script arguments: find a flag, and write its value back in the form in which the user wrote it.

All other arguments stay as they are, byte for byte and in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.hydra import is_key
from torchx_cubicml.records.argument_words import negations, with_underscores
from torchx_cubicml.space.spelling import number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_JOINED_FLAG = re.compile(r"--[A-Za-z][\w.-]*=")


class FlagForm(Enum):
    """Written form of a flag and its value."""

    SEPARATE = auto()  # --x v
    JOINED = auto()  # --x=v
    ATTACHED = auto()  # -xv
    SWITCH = auto()  # --x
    NEGATED = auto()  # --no-x


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a flag.

    Args:
        form: its written form.
        start: index of its first word.
        stop: index after its last word.
        texts: its value as written; several words for a list, none for a switch.
        flag: its name as typed, with hyphens or underscores.
    """

    form: FlagForm
    start: int
    stop: int
    texts: tuple[str, ...]
    flag: str


def find_flag(
    args: Sequence[str], flag: str, *, is_value: Callable[[str], bool], most_values: int = 1
) -> list[Occurrence]:
    """Return every occurrence of ``flag``, in order; words after ``--`` are positional and not searched.

    Hyphens and underscores in a name are the same: no program has two flags that differ in nothing else.

    Args:
        args: arguments of a script.
        flag: its name with dashes; a name that ends in ``=`` matches ``name=value`` only, with dashes or without.
        is_value: returns whether a word after the flag can be its value.
        most_values: maximum number of words in a value.

    >>> found = find_flag(["--lr=0.1", "--max-steps", "9"], "--max_steps", is_value=looks_like_value)[0]
    >>> found.flag, found.texts
    ('--max-steps', ('9',))
    """
    found: list[Occurrence] = []
    index, searched = 0, args[: _end_of_flags(args)]
    alike, off = flag.replace("-", "_"), frozenset(map(with_underscores, negations(flag)))
    while index < len(searched):
        word = searched[index]  # mostly another flag, or a value
        occurrence = None
        if word[: len(flag)].replace("-", "_") == alike or ("no" in word and with_underscores(word) in off):
            occurrence = _occurrence_at(searched, index, flag, is_value, most_values)
        if occurrence is not None:
            found.append(occurrence)
        index = occurrence.stop if occurrence is not None else index + 1
    return found


def looks_like_value(word: str) -> bool:
    """Return whether a word is no flag: it has no leading dash, or is a negative number or a lone dash."""
    return not word.startswith("-") or word == "-" or number(word) is not None


def flags_in(args: Sequence[str]) -> list[str]:
    """Return the names of the flags in ``args``, each once and without its value.

    >>> flags_in(["train", "--lr=0.1", "-v", "--lr", "2", "--", "--x"])
    ['--lr', '-v']
    """
    matches = (_FLAG.match(word) for word in args[: _end_of_flags(args)])
    return list(dict.fromkeys(match[0] for match in matches if match is not None))


def abbreviation_of(args: Sequence[str], flag: str) -> str | None:
    """Return a flag in ``args`` that argparse could read as an abbreviation of ``flag``; ``None`` without one."""
    return next((name for name in flags_in(args) if flag.startswith(name) and 3 <= len(name) < len(flag)), None)


def replace(args: Sequence[str], occurrence: Occurrence, words: Sequence[str]) -> tuple[str, ...]:
    """Return ``args`` with an occurrence replaced by ``words``."""
    return (*args[: occurrence.start], *words, *args[occurrence.stop :])


def append(args: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """Return ``args`` with ``words`` added at the end, or before a ``--``, where flags still count."""
    end = _end_of_flags(args)
    return (*args[:end], *words, *args[end:])


def write_value(flag: str, texts: Sequence[str], form: FlagForm) -> tuple[str, ...]:
    """Return the words that give ``flag`` a value in ``form``.

    >>> write_value("--lr", ["0.1"], FlagForm.JOINED), write_value("--opt", ["-O3"], FlagForm.SEPARATE)
    (('--lr=0.1',), ('--opt=-O3',))
    """
    if form is FlagForm.ATTACHED or flag.endswith("="):
        return (f"{flag}{texts[0]}",)
    # argparse takes a separate word that begins with a dash for the next flag.
    if form is FlagForm.JOINED or (len(texts) == 1 and not looks_like_value(texts[0])):
        return (f"{flag}={texts[0]}",)
    return (flag, *texts)


def usual_form(args: Sequence[str]) -> FlagForm:
    """Return the form for an added flag: ``--x=v`` if another flag has it, else ``--x v``."""
    joined = any(_JOINED_FLAG.match(word) for word in args[: _end_of_flags(args)])
    return FlagForm.JOINED if joined else FlagForm.SEPARATE


def keys_in(args: Sequence[str]) -> list[str]:
    """Return the keys of the ``key=value`` arguments that are no flags, each once and with its ``=``.

    >>> keys_in(["model.n_layer=4", "--lr=1", "+trainer.devices=8", "data.bin"])
    ['model.n_layer=', '+trainer.devices=']
    """
    words = (word.partition("=") for word in args if not word.startswith("-"))
    return list(dict.fromkeys(f"{key}=" for key, equals, _ in words if equals))


def positionals(args: Sequence[str]) -> list[str]:
    """Return the words that are neither flags nor, as far as can be determined, values of flags.

    >>> positionals(["config.py", "--lr", "0.1", "--n=4", "more.py"])
    ['config.py', 'more.py']
    """
    before = ["", *args]
    return [
        word
        for previous, word in zip(before, args, strict=False)
        if not word.startswith("-") and ("=" in previous or not previous.startswith("-"))
    ]


def set_flag(args: Sequence[str], flag: str, text: str) -> tuple[str, ...]:
    """Return ``args`` with ``flag`` set to ``text``: its last occurrence is replaced, or the flag is added."""
    spellings = (flag, f"+{flag}", f"++{flag}") if is_key(flag) else (flag,)  # Hydra's
    found = {name: each[-1] for name in spellings if (each := find_flag(args, name, is_value=looks_like_value))}
    if not found:
        return append(args, write_value(flag, [text], usual_form(args)))
    last = max(found.values(), key=lambda each: each.start)
    form = last.form if last.texts else FlagForm.SEPARATE
    return replace(args, last, write_value(last.flag, [text], form))


def _end_of_flags(args: Sequence[str]) -> int:
    return args.index("--") if "--" in args else len(args)


def _occurrence_at(
    args: Sequence[str], index: int, flag: str, is_value: Callable[[str], bool], most_values: int
) -> Occurrence | None:
    word = args[index]
    typed, rest = word[: len(flag)], word[len(flag) :]
    is_same = with_underscores(typed) == with_underscores(flag)
    if flag.endswith("="):
        return Occurrence(FlagForm.JOINED, index, index + 1, (rest,), typed) if is_same else None
    if is_same and not rest:
        stop = index + 1
        while stop < min(len(args), index + 1 + most_values) and is_value(args[stop]):
            stop += 1
        form = FlagForm.SEPARATE if stop > index + 1 else FlagForm.SWITCH
        return Occurrence(form, index, stop, tuple(args[index + 1 : stop]), typed)
    if is_same and rest.startswith("="):
        return Occurrence(FlagForm.JOINED, index, index + 1, (rest[1:],), typed)
    if is_same and len(flag) == 2 and is_value(rest):
        return Occurrence(FlagForm.ATTACHED, index, index + 1, (rest,), typed)
    negated = _negated(word, flag)
    return Occurrence(FlagForm.NEGATED, index, index + 1, (), negated) if negated else None


def _negated(word: str, flag: str) -> str:
    """Return the flag that a word switches off, in the spelling of the word; empty where it is not ``flag``."""
    if with_underscores(word) not in map(with_underscores, negations(flag)):
        return ""
    starts = (2, word.rfind(".") + 1)  # of "no-"
    candidates = (word[:start] + word[start + len("no-") :] for start in starts)
    return next((name for name in candidates if with_underscores(name) == with_underscores(flag)), flag)
