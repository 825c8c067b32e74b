"""Regular expressions whose search in one line ends soon, whatever the line.

A search may take exponential time where one repeat stands within another: such patterns are refused. What is left can
backtrack only where a repeat and what follows it take the same text. How often that happens in a line is counted before
the search, and a line that could take more than ``MAX_WORK`` steps is not searched.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from re import _constants as code  # type: ignore[attr-defined]  # the modules behind `re`; a test pins what is used
from re import _parser as parser  # type: ignore[attr-defined]  # likewise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PATTERN = 1000  # characters
MAX_WORK = 5_000_000  # steps of a search, of some ten nanoseconds each

_Item: TypeAlias = "tuple[object, object]"

_BEYOND = "\x80"  # stands for every character beyond ASCII
_ALL = frozenset(map(chr, range(129)))
_CATEGORIES = {
    code.CATEGORY_DIGIT: str.isdigit,
    code.CATEGORY_SPACE: str.isspace,
    code.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
}
_NOT_CATEGORIES = {
    code.CATEGORY_NOT_DIGIT: code.CATEGORY_DIGIT,
    code.CATEGORY_NOT_SPACE: code.CATEGORY_SPACE,
    code.CATEGORY_NOT_WORD: code.CATEGORY_WORD,
}
_MAX_BRANCHES = 256


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What may follow a place of a pattern: one of some characters, or one text; nothing at the pattern's end."""

    characters: frozenset[str] = frozenset()
    text: str = ""

    def count(self, line: str) -> int:
        """Return at how many places of a line it may begin."""
        if self.text:
            return line.count(self.text) * (len(self.text) if _overlaps_itself(self.text) else 1)
        if self.characters == _ALL:
            return len(line)
        return sum(map(self.characters.__contains__, _in_ascii(line)))

    def __or__(self, other: _Ahead) -> _Ahead:
        return self if self == other else _Ahead(self.characters | other.characters)


class BoundedPattern:
    """A compiled pattern that searches lines in bounded time.

    Args:
        text: the pattern.

    Raises:
        ValueError: it is no regular expression, or one whose search is not bounded; the message says the rule.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise ValueError(f"at most {MAX_PATTERN} characters are legal")
        try:
            self.compiled = re.compile(text)
            items = list(parser.parse(text))
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"a regular expression is wanted: {error}") from None
        if self.compiled.flags != re.UNICODE.value:
            raise ValueError("flags such as (?i) are not legal; [Ss]tep says both")
        walk = _Walk()
        first = walk.back(items, _Ahead())
        if walk.branches > _MAX_BRANCHES:
            raise ValueError("so many optional parts and alternatives are not legal; fewer are wanted")
        self._branches, self._repeats = walk.branches, tuple(walk.repeats)
        self._first = None if items and items[0] in _BEGINNINGS else first

    def search(self, line: str) -> re.Match[str] | None:
        """Return where the line matches first; ``None`` where it does not, or where to find out could take long."""
        return self.compiled.search(line) if self.work(line) <= MAX_WORK else None

    def work(self, line: str) -> int:
        """Return the steps that a search in the line takes at most, roughly."""
        starts = self._first.count(line) if self._first is not None else 1
        if not starts and self._first is not None and self._first.text:
            return 0
        ways = math.prod(max(repeat.count(line), 1) for repeat in self._repeats)
        return max(starts, 1) * ways * self._branches * max(len(line), 1)


_BEGINNINGS = ((code.AT, code.AT_BEGINNING), (code.AT, code.AT_BEGINNING_STRING))


class _Walk:
    """Walks a parsed pattern from its end to its beginning, and collects where a search may have to try again.

    ``repeats`` holds, for each repeat that takes what follows it too, what follows; ``branches`` counts alternatives.
    """

    def __init__(self) -> None:
        self.repeats: list[_Ahead] = []
        self.branches = 1

    def back(self, items: Iterable[_Item], ahead: _Ahead) -> _Ahead:
        """Return what may begin at ``items``, behind which ``ahead`` follows."""
        for operator, argument in reversed(list(items)):
            ahead = self._before(operator, argument, ahead)
        return ahead

    def _before(self, operator: object, argument: object, ahead: _Ahead) -> _Ahead:
        if operator is code.LITERAL and isinstance(argument, int):
            return _Ahead(_as_set(argument), chr(argument) + ahead.text)
        if operator in {code.NOT_LITERAL, code.ANY, code.IN}:
            return _Ahead(_members(operator, argument))
        if operator is code.AT:
            return ahead
        if operator is code.SUBPATTERN and isinstance(argument, tuple):
            if argument[1] or argument[2]:
                raise ValueError("flags such as (?i:...) are not legal; [Ss]tep says both")
            return self.back(argument[3], ahead)
        if operator is code.BRANCH and isinstance(argument, tuple):
            return self._branch(argument[1], ahead)
        if operator in {code.MAX_REPEAT, code.MIN_REPEAT} and isinstance(argument, tuple):
            least, most, items = argument
            return self._repeat((least, most), items, ahead)
        raise ValueError("look-around, back-references, conditions and atomic parts are not legal")

    def _branch(self, alternatives: Iterable[Iterable[_Item]], ahead: _Ahead) -> _Ahead:
        first, *others = [self.back(items, ahead) for items in alternatives]
        self.branches *= 1 + len(others)
        for other in others:
            first = first | other
        return first

    def _repeat(self, times: tuple[int, int], items: Iterable[_Item], ahead: _Ahead) -> _Ahead:
        least, most = times
        if most == 1:
            self.branches *= 2
            return self.back(items, ahead) | ahead
        inner = _Walk()
        first = inner.back(items, _Ahead())
        if inner.repeats or inner.branches > 1 or _is_variable(items):
            raise ValueError("a repeat or an alternative within a repeat is not legal, for its search may never end")
        several = sum(1 for _ in _flat(items)) > 1
        if least != most and (several or first.characters & ahead.characters):
            self.repeats.append(ahead)
        return first | ahead if least == 0 else _Ahead(first.characters)


def _flat(items: Iterable[_Item]) -> Iterable[_Item]:
    for operator, argument in items:
        if operator is code.SUBPATTERN and isinstance(argument, tuple):
            yield from _flat(argument[3])
        else:
            yield operator, argument


def _is_variable(items: Iterable[_Item]) -> bool:
    repeats = [argument for operator, argument in _flat(items) if operator in {code.MAX_REPEAT, code.MIN_REPEAT}]
    return any(isinstance(repeat, tuple) and repeat[0] != repeat[1] for repeat in repeats)


def _members(operator: object, argument: object) -> frozenset[str]:
    """Return the ASCII characters that an item takes, and ``_BEYOND`` where it takes others."""
    if operator is code.NOT_LITERAL and isinstance(argument, int):
        return _ALL - (_as_set(argument) - {_BEYOND})
    if operator is code.ANY or not isinstance(argument, list):
        return _ALL
    negated = bool(argument) and argument[0][0] is code.NEGATE
    members = frozenset().union(*(_class_item(*item) for item in argument[int(negated) :]))
    return (_ALL - members) | {_BEYOND} if negated else members


def _class_item(operator: object, argument: object) -> frozenset[str]:
    if operator is code.LITERAL and isinstance(argument, int):
        return _as_set(argument)
    if operator is code.RANGE and isinstance(argument, tuple):
        low, high = argument
        beyond = {_BEYOND} if high > 127 else set()
        return frozenset(map(chr, range(low, min(high, 127) + 1))) | beyond
    if argument in _NOT_CATEGORIES:
        return (_ALL - _class_item(operator, _NOT_CATEGORIES[argument])) | {_BEYOND}
    is_member = _CATEGORIES.get(argument)
    if is_member is None:
        return _ALL
    return frozenset(filter(is_member, map(chr, range(128)))) | {_BEYOND}


def _overlaps_itself(text: str) -> bool:
    return any(text.startswith(text[start:]) for start in range(1, len(text)))


def _as_set(point: int) -> frozenset[str]:
    return frozenset({chr(point) if point < 128 else _BEYOND})


def _in_ascii(line: str) -> Iterable[str]:
    return line if line.isascii() else (min(_BEYOND, character) for character in line)
