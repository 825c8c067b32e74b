"""Plan of TorchRec's planner as launches of a workload have shown it: the sharding of each table that is left to it.

A launch requests ``planner``, and the recorder observes what the planner chose. The formulas need the choice for every
config that leaves the table to the planner again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.standard_names import EMBEDDING_SHARDINGS, LEFT_TO_PLANNER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

PLAN = "embedding_plan"
"""Fact: the sharding that the planner chose for each table, empty where no launch has left the table to it."""
_SHARDING = "embedding_sharding"


def observed_plan(own: Iterable[Trial], observed_as: Mapping[str, str]) -> dict[str, Value]:
    """Return the planner's latest choice for each table as the fact ``embedding_plan``; nothing if none is known.

    Args:
        own: trials of the workload.
        observed_as: parameter -> name of the fact under which it is observed.

    >>> from torchx_cubicml.records.trial import State, Trial
    >>> asked, seen = ("planner", "row_wise"), ("table_wise", "row_wise")
    >>> trial = Trial(trial_id="a", workload={}, config={"embedding_sharding": asked},
    ...     observed={"embedding_sharding": seen}, state=State.COMPLETED)
    >>> observed_plan([trial], {"embedding_sharding": "embedding_sharding"})
    {'embedding_plan': ('table_wise', '')}
    """
    plan: list[str] = []
    for trial in sorted(own, key=lambda trial: (trial.started_at, trial.trial_id)):
        seen = trial.observed.get(_SHARDING)
        for name in (name for name, fact in observed_as.items() if fact == _SHARDING):
            if not isinstance(seen, tuple) or name not in trial.config:
                continue
            value = trial.config[name]
            asked = value if isinstance(value, tuple) else (value,) * len(seen)
            if len(asked) != len(seen):
                continue
            plan = plan if len(plan) == len(seen) else [""] * len(seen)
            for table, (word, chosen) in enumerate(zip(asked, seen, strict=True)):
                if word == LEFT_TO_PLANNER and chosen in EMBEDDING_SHARDINGS:
                    plan[table] = str(chosen)
    return {PLAN: tuple(plan)} if any(plan) else {}


def with_plan(trial: Trial, plan: Mapping[str, Value]) -> Trial:
    """Return the trial with the plan among its observed facts."""
    return replace(trial, observed={**trial.observed, **plan}) if plan else trial
