"""Recorded process: running the user's program, starting child processes, and printing to the console."""

from __future__ import annotations
