"""Remembers what each PyTorch training launch was and how fast it ran, and hands the next launch a better config."""

from __future__ import annotations
