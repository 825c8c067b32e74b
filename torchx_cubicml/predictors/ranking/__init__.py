"""Learning to rank: the paper's ensemble of one-hot MLPs with margin ranking loss."""

from __future__ import annotations
