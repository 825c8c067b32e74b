"""The recorded process: how it starts the user's program, its children, and what it prints."""

from __future__ import annotations
