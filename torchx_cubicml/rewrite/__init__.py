"""Rewriting of one launch: read the store, choose a config, write it into the command."""

from __future__ import annotations
