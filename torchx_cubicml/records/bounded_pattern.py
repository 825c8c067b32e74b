"""Regular expressions with bounded search time: a defence against catastrophic backtracking (ReDoS).

A search can take exponential time if one repeat is nested in another; such patterns are refused. Any other pattern
backtracks only where a repeat and the item after it match the same text. The number of such positions in a line bounds
the steps of a search, and a line that could take more than ``MAX_WORK`` steps is not searched.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from re import _constants as code  # type: ignore[attr-defined]  # internals of `re`; a test pins those used here
from re import _parser as parser  # type: ignore[attr-defined]  # likewise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PATTERN = 1000  # characters
MAX_WORK = 5_000_000  # steps of a search, about ten nanoseconds each

_Item: TypeAlias = "tuple[object, object]"

_NON_ASCII = "\x80"  # stands for every character outside ASCII
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
class _Lookahead:
    """Lookahead set at a position of a pattern: possible next characters, or one literal text; empty at the end."""

    characters: frozenset[str] = frozenset()
    text: str = ""

    def count(self, line: str) -> int:
        """Return the number of positions in a line where a member of the set may begin."""
        if self.text:
            return line.count(self.text) * (len(self.text) if _overlaps_itself(self.text) else 1)
        if self.characters == _ALL:
            return len(line)
        return sum(map(self.characters.__contains__, _in_ascii(line)))

    def __or__(self, other: _Lookahead) -> _Lookahead:
        return self if self == other else _Lookahead(self.characters | other.characters)


class BoundedPattern:
    """Compiled pattern that searches a line in bounded time.

    Args:
        text: the pattern.

    Raises:
        ValueError: the text is no regular expression, or its search is not bounded; the message states the rule.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise ValueError(f"at most {MAX_PATTERN} characters are allowed")
        try:
            self.compiled = re.compile(text)
            items = list(parser.parse(text))
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"invalid regular expression: {error}") from None
        if self.compiled.flags != re.UNICODE.value:
            raise ValueError("flags such as (?i) are not supported; use [Ss]tep instead")
        visitor = _Visitor()
        first = visitor.back(items, _Lookahead())
        if visitor.branches > _MAX_BRANCHES:
            raise ValueError("too many optional parts and alternatives; use fewer")
        self._branches, self._repeats = visitor.branches, tuple(visitor.repeats)
        self._first = None if items and items[0] in _BEGINNINGS else first

    def search(self, line: str) -> re.Match[str] | None:
        """Return the first match in the line; ``None`` for no match, or where the search could take too long."""
        return self.compiled.search(line) if self.work(line) <= MAX_WORK else None

    def work(self, line: str) -> int:
        """Return a rough upper bound of the steps of a search in the line."""
        starts = self._first.count(line) if self._first is not None else 1
        if not starts and self._first is not None and self._first.text:
            return 0
        ways = math.prod(max(repeat.count(line), 1) for repeat in self._repeats)
        return max(starts, 1) * ways * self._branches * max(len(line), 1)


_BEGINNINGS = ((code.AT, code.AT_BEGINNING), (code.AT, code.AT_BEGINNING_STRING))


class _Visitor:
    """Visitor of a parsed pattern, from its end to its beginning, that collects the points of backtracking.

    ``repeats`` holds the lookahead set of each repeat that can also match what follows it. ``branches`` is the number
    of combinations of alternatives.
    """

    def __init__(self) -> None:
        self.repeats: list[_Lookahead] = []
        self.branches = 1

    def back(self, items: Iterable[_Item], ahead: _Lookahead) -> _Lookahead:
        """Return the lookahead set at the start of ``items``, given the set ``ahead`` that follows them."""
        for operator, argument in reversed(list(items)):
            ahead = self._lookahead_before(operator, argument, ahead)
        return ahead

    def _lookahead_before(self, operator: object, argument: object, ahead: _Lookahead) -> _Lookahead:
        if operator is code.LITERAL and isinstance(argument, int):
            return _Lookahead(_as_set(argument), chr(argument) + ahead.text)
        if operator in {code.NOT_LITERAL, code.ANY, code.IN}:
            return _Lookahead(_members(operator, argument))
        if operator is code.AT:
            return ahead
        if operator is code.SUBPATTERN and isinstance(argument, tuple):
            if argument[1] or argument[2]:
                raise ValueError("flags such as (?i:...) are not supported; use [Ss]tep instead")
            return self.back(argument[3], ahead)
        if operator is code.BRANCH and isinstance(argument, tuple):
            return self._branch(argument[1], ahead)
        if operator in {code.MAX_REPEAT, code.MIN_REPEAT} and isinstance(argument, tuple):
            least, most, items = argument
            return self._repeat((least, most), items, ahead)
        raise ValueError("look-around, back-references, conditions and atomic parts are not supported")

    def _branch(self, alternatives: Iterable[Iterable[_Item]], ahead: _Lookahead) -> _Lookahead:
        first, *others = [self.back(items, ahead) for items in alternatives]
        self.branches *= 1 + len(others)
        for other in others:
            first = first | other
        return first

    def _repeat(self, times: tuple[int, int], items: Iterable[_Item], ahead: _Lookahead) -> _Lookahead:
        least, most = times
        if most == 1:
            self.branches *= 2
            return self.back(items, ahead) | ahead
        inner = _Visitor()
        first = inner.back(items, _Lookahead())
        if inner.repeats or inner.branches > 1 or _is_variable(items):
            raise ValueError("a repeat or an alternative within a repeat could backtrack exponentially")
        several = sum(1 for _ in _flat(items)) > 1
        if least != most and (several or first.characters & ahead.characters):
            self.repeats.append(ahead)
        return first | ahead if least == 0 else _Lookahead(first.characters)


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
    """Return the ASCII characters that an item matches, and ``_NON_ASCII`` if it matches others."""
    if operator is code.NOT_LITERAL and isinstance(argument, int):
        return _ALL - (_as_set(argument) - {_NON_ASCII})
    if operator is code.ANY or not isinstance(argument, list):
        return _ALL
    negated = bool(argument) and argument[0][0] is code.NEGATE
    members = frozenset().union(*(_class_item(*item) for item in argument[int(negated) :]))
    return (_ALL - members) | {_NON_ASCII} if negated else members


def _class_item(operator: object, argument: object) -> frozenset[str]:
    if operator is code.LITERAL and isinstance(argument, int):
        return _as_set(argument)
    if operator is code.RANGE and isinstance(argument, tuple):
        low, high = argument
        non_ascii = {_NON_ASCII} if high > 127 else set()
        return frozenset(map(chr, range(low, min(high, 127) + 1))) | non_ascii
    if argument in _NOT_CATEGORIES:
        return (_ALL - _class_item(operator, _NOT_CATEGORIES[argument])) | {_NON_ASCII}
    is_member = _CATEGORIES.get(argument)
    if is_member is None:
        return _ALL
    return frozenset(filter(is_member, map(chr, range(128)))) | {_NON_ASCII}


def _overlaps_itself(text: str) -> bool:
    return any(text.startswith(text[start:]) for start in range(1, len(text)))


def _as_set(point: int) -> frozenset[str]:
    return frozenset({chr(point) if point < 128 else _NON_ASCII})


def _in_ascii(line: str) -> Iterable[str]:
    return line if line.isascii() else (min(_NON_ASCII, character) for character in line)
