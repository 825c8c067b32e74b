"""Ranks that a recorded program starts itself, by multiprocessing or as processes of the same Python."""

from __future__ import annotations
