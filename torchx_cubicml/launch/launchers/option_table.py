"""Options of a launcher's command line, and the parser that finds the program behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePlace:
    """Place of an option's value in a command.

    Args:
        index: index of the word.
        before: text in front of the value in that word, such as ``--np=``.
    """

    index: int
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedOptions:
    """Options of a command, as typed.

    Args:
        values: option -> text of its last value; empty for a switch.
        places: option -> place of that value; a switch has the place of its own word.
        switches: option without a value -> indices of all words that set it.
        stop: index of the first word behind the options.
    """

    values: Mapping[str, str]
    places: Mapping[str, ValuePlace]
    switches: Mapping[str, tuple[int, ...]]
    stop: int

    def number(self, name: str) -> int | None:
        """Return the value of an option as a whole number; ``None`` where it is not typed, or is none."""
        text = self.values.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """Options of a launcher, in underscores for hyphens.

    Args:
        launcher: its name.
        with_value: long options with one value.
        without_value: long options without a value.
        values: option -> number of its values, where that is more than one.
        short: letters behind one hyphen -> long option.
        joined_short: whether a value may follow its short option in the same word (``-n4``).
        optional_value: long options whose value, if any, follows ``=``.
        hyphens: whether hyphens may stand for the underscores of a long option.
    """

    launcher: str
    with_value: frozenset[str]
    without_value: frozenset[str]
    values: Mapping[str, int] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    joined_short: bool = False
    optional_value: frozenset[str] = frozenset()
    hyphens: bool = True

    def parse(self, words: Sequence[str], start: int) -> TypedOptions:
        """Parse the options from ``start`` to the first word that is none.

        Raises:
            LaunchError: an option is unknown, so that the program behind it is not known either.
        """
        values: dict[str, str] = {}
        places: dict[str, ValuePlace] = {}
        switches: dict[str, tuple[int, ...]] = {}
        index = start
        while index < len(words) and words[index].startswith("-") and words[index] not in {"-", "--"}:
            name, before, text = self._split(words[index])
            width = self._width(name, has_value=bool(before))
            if name in self.without_value:
                switches[name] = (*switches.get(name, ()), index)
            at = index if before or width == 1 else index + 1
            if at >= len(words):
                raise LaunchError(f"option {words[index]} of {self.launcher} has no value")
            values[name] = text if before else (words[at] if width > 1 else "")
            places[name] = ValuePlace(index=at, before=before)
            index += width
        return TypedOptions(values=values, places=places, switches=switches, stop=index)

    def _width(self, name: str, *, has_value: bool) -> int:
        """Return the number of words that an option takes."""
        if name in self.values:
            return 1 + self.values[name]
        return 2 if name in self.with_value and not has_value else 1

    def _split(self, word: str) -> tuple[str, str, str]:
        """Return the option that a word names, the text in front of a value in the same word, and that value."""
        head, joined, text = word.partition("=")
        known = self.with_value | self.without_value | self.optional_value | self.values.keys()
        if head.startswith("--"):
            name = head[2:].replace("-", "_") if self.hyphens else head[2:]
            if name in known and (not joined or name not in self.without_value):
                return name, f"{head}=" if joined else "", text
        elif head[1:] in self.short and not joined:
            return self.short[head[1:]], "", ""
        elif self.joined_short and self.short.get(word[1:2]) in self.with_value:
            return self.short[word[1]], word[:2], word[2:]
        raise LaunchError(f"unknown option {head} of {self.launcher}")


def option_names(text: str, *, before: str = "") -> frozenset[str]:
    """Return the names in a text, with ``before`` in front of each.

    >>> sorted(option_names("backend mode", before="dynamo_"))
    ['dynamo_backend', 'dynamo_mode']
    """
    return frozenset(f"{before}{name}" for name in text.split())


def short_names(text: str) -> dict[str, str]:
    """Return letter -> long option of a text.

    >>> short_names("n=ntasks N=nodes")
    {'n': 'ntasks', 'N': 'nodes'}
    """
    return {letter: name for letter, _, name in (pair.partition("=") for pair in text.split())}
