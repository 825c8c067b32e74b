"""Ranks: how they exchange what each of them observed."""

from __future__ import annotations
