"""Log lines: the throughput that a program prints itself."""

from __future__ import annotations
