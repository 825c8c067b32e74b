"""Memory models: which configs fit into memory."""

from __future__ import annotations
