"""Trials in, suggestions out: what to launch next to learn most, and what is known to be best.

``outlook`` says what history expects of a config, ``acquisition`` what a config is worth trying, ``advisor`` chooses,
and ``reasons`` says why in words.
"""

from __future__ import annotations

from torchx_cubicml.advisor.advisor import Suggestion, best_known, suggest

__all__ = ["Suggestion", "best_known", "suggest"]
