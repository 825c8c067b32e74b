"""Log lines: throughput that the program itself prints."""

from __future__ import annotations
