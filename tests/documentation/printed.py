"""Outputs shown in a page, compared with what a command has printed."""

from __future__ import annotations

import re


def unprinted(text: str, printed: str) -> list[str]:
    """Return the lines of a text that a command did not print; numbers may differ, ``...`` stands for anything."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return [line for line in text.splitlines() if line.strip() and not any(shape(line).search(each) for each in lines)]


def shape(line: str) -> re.Pattern[str]:
    """Return the pattern of a line with any numbers."""
    parts = re.split(r"(\.\.\.|\d[\d,.]*)", " ".join(line.split()))
    wild = {"...": ".*"}
    return re.compile(
        "".join(wild.get(part, r"\d[\d,.]*" if part[:1].isdigit() else re.escape(part)) for part in parts)
    )
