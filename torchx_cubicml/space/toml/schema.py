"""Strict reader of one table of a space file: errors on unknown keys and wrong types name place and rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.values import MAX_ITEMS, MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torchx_cubicml.records.values import Scalar, Value

MAX_WHOLE_NUMBER = 2**63 - 1  # the largest that a script can be trusted to read


class TomlTable:
    """A TOML table with its place in the file and its legal keys."""

    def __init__(self, content: object, *, where: str, name: str = "", legal: Sequence[str] | None) -> None:
        """Check the keys of a table.

        Args:
            content: the parsed TOML value.
            where: the file, for messages.
            name: its dotted name, empty for the whole file.
            legal: its legal keys; ``None`` if the user chooses them.

        Raises:
            SpaceError: ``content`` is no table, or has an unknown key.
        """
        self._where, self._name = where, name
        if not isinstance(content, Mapping):
            raise SpaceError(f"{self.place}: must be a table, got {content!r:.60}")
        for key in content:
            if legal is not None and key not in legal:
                raise SpaceError(f"{self.place}: unknown key {key!r:.60}; {choose_from(legal, key)}")
        self._content = content

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    @property
    def name(self) -> str:
        """Last part of the dotted name."""
        return self._name.rpartition(".")[2]

    @property
    def place(self) -> str:
        """File and dotted name, for messages."""
        return f"{self._where}: {self._name}" if self._name else self._where

    def error(self, key: str, rule: str) -> SpaceError:
        """Return an error with the rule that the value of ``key`` breaks."""
        got = f", got {self._content[key]!r:.60}" if key in self._content else ""
        return SpaceError(f"{self._where}: {self._inner(key)}: {rule}{got}")

    def unknown(self, key: str, kind: str, name: str, legal: Collection[str], *, owner: str = "") -> SpaceError:
        """Return an error on a name of some kind under ``key``, perhaps of an owner, that is not among the legal ones.

        >>> print(TomlTable({}, where="x.toml", legal=()).unknown("trainer", "trainer", "nanogtp", ["hf", "nanogpt"]))
        x.toml: trainer: unknown trainer 'nanogtp'; did you mean 'nanogpt'? (choose from hf, nanogpt)
        """
        what = f"unknown {kind} {name!r:.80}{owner and f' for {owner}'}"
        return SpaceError(f"{self._where}: {self._inner(key)}: {what}; {choose_from(legal, name)}")

    def table(self, key: str, *, legal: Sequence[str] | None) -> TomlTable:
        """Return the table under ``key``, an empty one if absent."""
        return TomlTable(self._content.get(key, {}), where=self._where, name=self._inner(key), legal=legal)

    def tables(self, key: str, *, legal: Sequence[str]) -> list[TomlTable]:
        """Return the tables of the array ``[[key]]``."""
        content = self._content.get(key, [])
        if not isinstance(content, list):
            raise self.error(key, f"must be an array of tables, [[{key}]]")
        return [
            TomlTable(item, where=self._where, name=f"{self._inner(key)}[{index}]", legal=legal)
            for index, item in enumerate(content)
        ]

    def raw(self, key: str) -> object:
        """Return the parsed TOML value of ``key``, ``None`` if absent."""
        return self._content.get(key)

    def text(self, key: str) -> str | None:
        """Return a text, ``None`` if absent."""
        value = self._content.get(key)
        if value is None or (isinstance(value, str) and len(value) <= MAX_TEXT and "\0" not in value):
            return value
        raise self.error(key, f"must be a string of at most {MAX_TEXT} characters")

    def count(self, key: str) -> int | None:
        """Return a whole number from 1 to ``MAX_ITEMS``, ``None`` if absent."""
        value = self._content.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ITEMS:
            raise self.error(key, f"must be a whole number from 1 to {MAX_ITEMS}")
        return value

    def switch(self, key: str) -> bool:
        """Return a boolean, ``False`` if absent."""
        value = self._content.get(key, False)
        if isinstance(value, bool):
            return value
        raise self.error(key, "must be true or false")

    def number(self, key: str) -> int | float | None:
        """Return a number, ``None`` if absent."""
        value = self._content.get(key)
        if value is None:
            return None
        scalar = self._scalar(key, value)
        if isinstance(scalar, bool | str):
            raise self.error(key, "must be a number")
        return scalar

    def value(self, key: str) -> Value | None:
        """Return one value, or a flat list as a tuple; ``None`` if absent."""
        value = self._content.get(key)
        if value is None:
            return None
        return self.values(key, most=MAX_ITEMS) if isinstance(value, list) else self._scalar(key, value)

    def values(self, key: str, *, most: int) -> tuple[Scalar, ...]:
        """Return a list of values that has at least one entry and at most ``most``."""
        content = self._content.get(key)
        if not isinstance(content, list) or not 1 <= len(content) <= most:
            raise self.error(key, f"must be a list of 1 to {most} values")
        return tuple(self._scalar(key, item) for item in content)

    def _inner(self, key: str) -> str:
        shown = key if key.isprintable() else repr(key)
        return f"{self._name}.{shown}" if self._name else shown

    def _scalar(self, key: str, value: object) -> Scalar:
        if isinstance(value, str) and len(value) <= MAX_TEXT and "\0" not in value:
            return value
        if isinstance(value, int) and abs(value) <= MAX_WHOLE_NUMBER:  # booleans too
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        raise self.error(
            key,
            f"values must be true, false, finite numbers within 64 bits or strings of at most {MAX_TEXT} characters",
        )


def closest(name: str, legal: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` if a legal name is close, else an empty text.

    >>> closest("chioces", ["choices", "flag"])
    "; did you mean 'choices'?"
    """
    near = get_close_matches(name[:80], [item for item in legal if len(item) <= 80])
    return f"; did you mean {near[0]!r}?" if near else ""


def choose_from(legal: Collection[str], name: str) -> str:
    """Return the end of a message on an unknown name: the closest legal name, if any, and all of them.

    >>> choose_from(["choices", "flag"], "chioces")
    "did you mean 'choices'? (choose from choices, flag)"
    """
    near, all_of_them = closest(name, legal), f"choose from {', '.join(legal)}"
    return f"{near.removeprefix('; ')} ({all_of_them})" if near else all_of_them
