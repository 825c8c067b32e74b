"""Append-only journal of trials: each event is one immutable JSON object below any fsspec URL."""

from __future__ import annotations

from torchx_cubicml.store.deadline import read_trials
from torchx_cubicml.store.trial_store import TrialStore
from torchx_cubicml.store.url import absolute_url

__all__ = ["TrialStore", "absolute_url", "read_trials"]
