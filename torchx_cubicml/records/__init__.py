"""Records: the data stored for each launch, under standard names."""

from __future__ import annotations
