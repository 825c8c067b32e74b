"""Bindings: one module for each kind of place in a command that can hold a value."""

from __future__ import annotations
