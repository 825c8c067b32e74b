"""Dominance rules for memory: what outcomes prove about configs that need at least as much, or no more.

A config that needs at least as much memory in every respect (``order``) as one that ran out does not fit, and one that
needs no more than one that ran does. Allocators are not perfectly monotone: where a launch ran although the rule says
that it cannot, the respects in which it needs more are no longer ordered for that workload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.memory.placement import OutcomeSpace, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.predictors.memory.order import MemoryOrder
    from torchx_cubicml.records.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A launch that ran although it needs at least as much memory as one that ran out.

    Args:
        ran: id of the trial that ran.
        failed: id of the trial that ran out of memory.
        parameters: parameters in which the first needs more.
    """

    ran: str
    failed: str
    parameters: tuple[str, ...]

    def text(self) -> str:
        """Return it in words.

        >>> Contradiction(ran="t2", failed="t1", parameters=("micro_batch_size",)).text()
        'memory is predicted without the order of micro_batch_size: t2 ran, and t1, which needs no more, ran out of it'
        """
        names = " and ".join(self.parameters)
        return (
            f"memory is predicted without the order of {names}: "
            f"{self.ran} ran, and {self.failed}, which needs no more, ran out of it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Coordinates of outcomes whose other facts are equal.

    Args:
        failed: of all that failed, ``[n_failed, n_coordinates]``.
        least_failed: those of them that are at least no other.
        most_ran: of those that ran and are at most no other.
    """

    failed: NDArray[np.float64]
    least_failed: NDArray[np.float64]
    most_ran: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DominanceRules:
    """Dominance rules of one workload.

    Args:
        order: of its configs.
        space: coordinates and groups of the outcomes.
        groups: outcomes of each group.
        outcomes: rows, whether each fitted, and the ids of their trials.
        contradictions: launches that ran against the rules, with the parameters whose order they disprove.
        feared: rows that are taken to run out of memory, though that is not known.
    """

    order: MemoryOrder
    space: OutcomeSpace
    groups: tuple[_Evidence, ...]
    outcomes: tuple[tuple[Mapping[str, Value], bool, str], ...]
    contradictions: tuple[Contradiction, ...] = ()
    feared: tuple[Mapping[str, Value], ...] = ()

    @classmethod
    def of_history(cls, history: TrainingTable, order: MemoryOrder) -> Self:
        """Return the rules from the outcomes of a history, in which memory alone decides."""
        return cls.of(
            zip(history.rows, history.feasible.tolist(), history.trial_ids, strict=True),
            order=order,
        )

    @classmethod
    def of(
        cls,
        outcomes: Iterable[tuple[Mapping[str, Value], bool, str]],
        *,
        order: MemoryOrder,
        feared: Sequence[Mapping[str, Value]] = (),
    ) -> Self:
        """Return the rules from outcomes: a row, whether it fitted, and the id of its trial.

        Args:
            outcomes: of any workload; those of others are left out.
            order: of the configs; without parameters there are no rules.
            feared: see ``DominanceRules``.
        """
        own = tuple(each for each in outcomes if order.parameters and _is_of_workload(each[0], order))
        rows, fitted = [*(row for row, _, _ in own), *feared], np.array([fits for _, fits, _ in own], dtype=np.bool_)
        if not rows or not order.parameters:
            return cls(order=order, space=OutcomeSpace(order=order, columns=(), equal=()), groups=(), outcomes=own)
        space = OutcomeSpace.of(rows, order)
        contradictions = _contradictions(space, rows[: len(own)], fitted, [name for _, _, name in own])
        disproved = [each.parameters for each in contradictions]
        if disproved:
            space = OutcomeSpace.of(rows, order, unordered=frozenset(chain.from_iterable(disproved)))
        placed, ran = space.place(rows), np.concatenate([fitted, np.zeros(len(feared), dtype=np.bool_)])
        groups = (
            _Evidence(
                failed=placed.low[(placed.group == group) & ~ran],
                least_failed=_minimal(placed.low[(placed.group == group) & ~ran]),
                most_ran=-_minimal(-placed.low[(placed.group == group) & ran]),
            )
            for group in range(int(placed.group.max(initial=-1)) + 1)
        )
        return cls(
            order=order,
            space=space,
            groups=tuple(groups),
            outcomes=own,
            contradictions=tuple(contradictions),
            feared=tuple(feared),
        )

    def fearing(self, rows: Sequence[Mapping[str, Value]]) -> DominanceRules:
        """Return the rules as if ``rows`` had run out of memory."""
        return DominanceRules.of(self.outcomes, order=self.order, feared=(*self.feared, *rows))

    def verdicts(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return 0.0 for rows known not to fit, 1.0 for those known to fit, else NaN, float64 ``[n]``.

        A config that ran out of memory once counts as infeasible, even if it ran at another time. The user's own config
        is excluded by a launch of itself alone.
        """
        found = np.full(len(rows), np.nan)
        if not self.groups:
            return found
        placed, itself = self.space.place(rows), np.zeros(len(rows), dtype=np.bool_)
        for group in np.unique(placed.group[placed.group >= 0]).tolist():
            index = np.flatnonzero(placed.group == group)
            evidence, low, high = self.groups[group], placed.low[index], placed.high[index]
            found[index[_any_at_least(-high, -evidence.most_ran)]] = 1.0
            fails = _any_at_least(low, evidence.least_failed)
            found[index[fails]] = 0.0
            itself[index] = _any_equal(low, evidence.failed)
        if (found == 0.0).any():
            found[(found == 0.0) & ~itself & self.space.is_own(rows)] = np.nan
        return found


KNOWN_TO_FIT = 0.999  # probability of what needs no more than a launch that ran; machines fail for other reasons, too


def decided(verdicts: NDArray[np.float64], probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return predicted probabilities to fit, replaced where a rule decides; none is surer than what ran, ``[n]``."""
    predicted = np.minimum(probability, KNOWN_TO_FIT)
    return np.where(verdicts == 0.0, 0.0, np.where(verdicts == 1.0, KNOWN_TO_FIT, predicted))


def at_least(rows: Sequence[Mapping[str, Value]], row: Mapping[str, Value], *, order: MemoryOrder) -> NDArray[np.bool_]:
    """Return whether each of ``rows`` needs at least as much memory as ``row`` in every respect, ``[n]``."""
    rules = DominanceRules.of([(row, False, "")], order=replace(order, own={}))
    return np.asarray(rules.verdicts(rows) == 0.0, dtype=np.bool_)


def _is_of_workload(row: Mapping[str, Value], order: MemoryOrder) -> bool:
    return all(row.get(name) == value for name, value in order.workload.items() if name not in order.respects)


def _contradictions(
    space: OutcomeSpace, rows: Sequence[Mapping[str, Value]], fitted: NDArray[np.bool_], trial_ids: Sequence[str]
) -> list[Contradiction]:
    """Return contradictions that explain every pair; of those that one parameter explains, that one is to blame."""
    if fitted.all() or not fitted.any():
        return []
    placed, names = space.place(rows), space.names()
    found: list[Contradiction] = []
    for failed in np.flatnonzero(~fitted).tolist():
        others = np.flatnonzero(fitted & (placed.group == placed.group[failed]))
        more = placed.low[others] > placed.low[failed]
        against = (placed.low[others] >= placed.low[failed]).all(axis=1) & more.any(axis=1)
        for ran, columns in zip(others[against].tolist(), more[against], strict=True):
            parameters = {
                name
                for column in np.flatnonzero(columns).tolist()
                for name in names[column]
                if len(names[column]) == 1 or number(rows[ran].get(name)) > number(rows[failed].get(name))
            }
            found.append(
                Contradiction(ran=trial_ids[ran], failed=trial_ids[failed], parameters=tuple(sorted(parameters)))
            )
    found.sort(key=lambda each: (len(each.parameters), each.parameters, each.failed, each.ran))
    kept: list[Contradiction] = []
    blamed: set[str] = set()
    for each in found:
        if blamed.isdisjoint(each.parameters):
            kept.append(each)
            blamed.update(each.parameters)
    return kept


def _any_at_least(points: NDArray[np.float64], limits: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each of ``points`` is at least one of ``limits`` in every coordinate, ``[n]``."""
    found = np.zeros(len(points), dtype=np.bool_)
    for limit in limits:
        left = np.flatnonzero(~found)
        for columns in (slice(0, _FIRST_COLUMNS), slice(_FIRST_COLUMNS, None)):  # most points differ in the first ones
            left = left[(points[left, columns] >= limit[columns]).all(axis=1)]
        found[left] = True
    return found


_FIRST_COLUMNS = 6


def _any_equal(points: NDArray[np.float64], limits: NDArray[np.float64]) -> NDArray[np.bool_]:
    found = np.zeros(len(points), dtype=np.bool_)
    for limit in limits:
        found |= (points == limit).all(axis=1)
    return found


def _minimal(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distinct points that are at least no other point in every coordinate."""
    distinct = np.unique(points, axis=0)
    kept: list[NDArray[np.float64]] = []
    for point in distinct[np.argsort(distinct.sum(axis=1), kind="stable")]:
        if not any((point >= other).all() for other in kept):
            kept.append(point)
    return np.array(kept).reshape(len(kept), points.shape[1])
