"""Trials in, suggestions out: what to launch next to learn most, and what is known to be best.

``surrogates`` learn from history, ``posterior`` says what it expects of one workload's configs, ``acquisition`` what a
config is worth trying, ``batch`` chooses (``roofline_starts`` before anything was measured, ``apart`` what differs).
``winner`` says which is the best known, ``promise`` what to expect and ``reasons`` why in words, ``confidence`` how
sure the winner is and what another round may bring, ``sensitivity`` what each parameter is worth. A ``Study`` is
learned once for as many of these questions as are asked.
"""

from __future__ import annotations

from torchx_cubicml.advisor.batch import DEFAULT_METHOD, ProposalMethod
from torchx_cubicml.advisor.confidence import Confidence, expected_gain, verdict
from torchx_cubicml.advisor.sensitivity import Alternative, ParameterWorth, sensitivity
from torchx_cubicml.advisor.study import Study, best_known, suggest
from torchx_cubicml.records.suggestion import Suggestion

__all__ = [
    "DEFAULT_METHOD",
    "Alternative",
    "Confidence",
    "ParameterWorth",
    "ProposalMethod",
    "Study",
    "Suggestion",
    "best_known",
    "expected_gain",
    "sensitivity",
    "suggest",
    "verdict",
]
