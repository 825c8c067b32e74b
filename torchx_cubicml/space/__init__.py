"""Search space: parameters with their legal values, constraints, and all legal configs.

``search_space`` and ``parameter`` hold the records; ``expression`` parses and evaluates arithmetic; ``legal_configs``
counts, lists and draws legal configs.
"""

from __future__ import annotations

from torchx_cubicml.space.parameter import Binding, BindingKind, Parameter, WorkloadFact
from torchx_cubicml.space.search_space import (
    Dimension,
    RewriteRules,
    SearchSpace,
    TuneChanges,
    computed_global_batch_size,
    implied_values,
)

__all__ = [
    "Binding",
    "BindingKind",
    "Dimension",
    "Parameter",
    "RewriteRules",
    "SearchSpace",
    "TuneChanges",
    "WorkloadFact",
    "computed_global_batch_size",
    "implied_values",
]
