"""Observed averages that sampling alone makes differ between launches: one value for all trials of a workload.

The rows that a sample looks up in each embedding table depend on the data that a launch happened to see. Without one
value they would count as facts that leak the target, and the formulas of recommenders would lack them.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_AVERAGES = ("embedding_pooling",)
_MOST_RATIO = 1.5  # of the largest to the smallest average, beyond which the data differs and not the sample


def common_averages(own: Sequence[Trial]) -> dict[str, Value]:
    """Return the observed averages of a workload's trials, each entry the median over the trials.

    A fact is left out where the trials do not agree about it up to sampling, or about the number of its entries.

    >>> from torchx_cubicml.records.trial import State, Trial
    >>> trials = [Trial(trial_id="a", workload={}, config={}, observed={"embedding_pooling": (1.0, each)},
    ...     state=State.COMPLETED) for each in (2.0, 2.1, 2.3)]
    >>> common_averages(trials)
    {'embedding_pooling': (1.0, 2.1)}
    """
    found: dict[str, Value] = {}
    for name in _AVERAGES:
        lists = [_numbers(trial.observed[name]) for trial in own if name in trial.observed]
        if not lists or not all(lists) or len({len(each) for each in lists}) > 1:
            continue
        entries = list(zip(*lists, strict=True))
        if all(0.0 <= max(entry) <= _MOST_RATIO * min(entry) for entry in entries):
            found[name] = tuple(map(median, entries))
    return found


def with_averages(trial: Trial, averages: Mapping[str, Value]) -> Trial:
    """Return the trial with ``averages`` in place of its own, where it observed them."""
    shared = {name: value for name, value in averages.items() if name in trial.observed}
    return replace(trial, observed={**trial.observed, **shared}) if shared else trial


def _numbers(value: Value) -> tuple[float, ...]:
    """Return the entries of a list of numbers; empty where it is none."""
    entries = value if isinstance(value, tuple) else ()
    numbers = tuple(float(each) for each in entries if isinstance(each, int | float) and not isinstance(each, bool))
    return numbers if len(numbers) == len(entries) else ()
