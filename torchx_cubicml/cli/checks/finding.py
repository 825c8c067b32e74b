"""Finding of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchx_cubicml.records.redaction import mask, printable


class Level(StrEnum):
    """Level of a finding."""

    OK = "ok"
    SKIPPED = "skipped"  # not checked, for the reason that the finding gives
    WARNING = "warning"  # launches go on, and something is lost or doubtful
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of one check.

    Args:
        level: its level.
        found: text of what was found.
        cure: text of what to do; empty where nothing need be done.
    """

    level: Level
    found: str
    cure: str = ""

    def to_json(self, name: str) -> dict[str, str]:
        """Return the finding of the check ``name`` as JSON, with secrets masked."""
        return {"check": name, "level": str(self.level), "found": shown(self.found), "cure": shown(self.cure)}


def ok(found: str) -> Finding:
    """Return a finding that needs no cure."""
    return Finding(level=Level.OK, found=found)


def skipped(found: str) -> Finding:
    """Return the finding of a check that was not made."""
    return Finding(level=Level.SKIPPED, found=found)


def warning(found: str, cure: str) -> Finding:
    """Return a finding of something lost or doubtful."""
    return Finding(level=Level.WARNING, found=found, cure=cure)


def wrong(found: str, cure: str) -> Finding:
    """Return a finding of something broken."""
    return Finding(level=Level.WRONG, found=found, cure=cure)


def shown(text: str) -> str:
    """Return a text on one line, with secrets masked and control characters escaped."""
    return printable(mask(" ".join(text.split())))


def some(texts: list[str], *, most: int = 3) -> str:
    """Return the first of some texts, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"]), some(["a"])
    ('a; b; c and 2 more', 'a')
    """
    return "; ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
