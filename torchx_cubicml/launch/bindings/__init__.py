"""Bindings: one module for each kind of place in a command where a value stands."""

from __future__ import annotations
