"""Check of the store's clock against the one here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, wrong

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "store: clock", 90
MAX_OFFSET_S = 60.0
"""Seconds by which two clocks may differ: far above a file system's ticks, far below what confuses a person."""


def check(context: CheckContext) -> Finding:
    """Check the stamp that the store gave the probe."""
    offset = context.probe.clock_offset_s
    if offset is None:
        return skipped("no probe was written, or the store does not tell when")
    if abs(offset) > MAX_OFFSET_S:
        return wrong(*clock_finding("the store's clock", offset))
    return ok(f"agrees with the clock here within {MAX_OFFSET_S:g} s")


def clock_finding(whose: str, offset_s: float) -> tuple[str, str]:
    """Return finding and cure of a clock that is ahead of the one here, or behind if negative.

    >>> clock_finding("the store's clock", -3600.0)[0]
    "the store's clock is 3600 s behind the one here"
    """
    found = f"{whose} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the one here"
    return found, "set both clocks by NTP (timedatectl); signed requests and the order of records depend on them"
