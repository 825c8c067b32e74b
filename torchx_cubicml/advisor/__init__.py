"""Advisor: trials in, suggestions out (Bayesian optimization).

``surrogates`` are fitted to the history, ``posterior`` combines them with the workload's own measurements and ranks
what was measured, ``acquisition`` scores configs, and ``batch`` selects the next launches. ``explain`` builds
suggestions with reasons, ``confidence`` computes how certain the winner is and the expected gain of another round, and
``sensitivity`` the effect of each parameter. A ``Study`` is fitted once and serves any number of these queries.
"""

from __future__ import annotations

from torchx_cubicml.advisor.batch import DEFAULT_METHOD, ProposalMethod
from torchx_cubicml.advisor.confidence import Confidence, expected_gain, verdict
from torchx_cubicml.advisor.sensitivity import Alternative, ParameterSensitivity, sensitivity
from torchx_cubicml.advisor.study import Study, best_known, incumbent, suggest
from torchx_cubicml.records.suggestion import Suggestion

__all__ = [
    "DEFAULT_METHOD",
    "Alternative",
    "Confidence",
    "ParameterSensitivity",
    "ProposalMethod",
    "Study",
    "Suggestion",
    "best_known",
    "expected_gain",
    "incumbent",
    "sensitivity",
    "suggest",
    "verdict",
]
