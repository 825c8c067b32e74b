"""The host: its devices and its memory."""

from __future__ import annotations
