"""Constraints and reservation of a TorchRec planner, changed in place and restored where no plan follows from them."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES = "torchrec.distributed.planner.types"


def obstacle_to_change(planner: Any, *, sets_share: bool) -> str:
    """Return the reason why a planner cannot be changed, in words; empty if it can.

    Args:
        planner: TorchRec's ``EmbeddingShardingPlanner``.
        sets_share: whether its reserved share of memory is to be changed too.
    """
    if getattr(planner, "plan_loader", None) is not None:
        return "the program's planner loads a stored plan"
    enumerator = getattr(planner, "_enumerator", None)
    constraints = [vars(each).get("_constraints", ...) for each in (planner, enumerator) if each is not None]
    if enumerator is None or ... in constraints:
        return "the program's planner keeps no constraints that can be changed"
    if not all(each is None or isinstance(each, dict) for each in constraints):
        return "the constraints of the program's planner are not a dictionary"
    if not sets_share:
        return ""
    reservation = getattr(planner, "_storage_reservation", None)
    if hasattr(reservation, "_hbm_reserved_bytes") or not isinstance(
        getattr(reservation, "_percentage", None), float | int
    ):
        return f"the program's reservation {type(reservation).__name__} keeps no share of the memory"
    return ""


class ChangedPlanner:
    """A planner with changed constraints and reservation.

    All other fields of a table's constraints stay as the program set them. The program's own objects are not changed,
    but replaced by copies.

    Args:
        planner: TorchRec's ``EmbeddingShardingPlanner`` without an obstacle: see ``obstacle_to_change``.
        fields: table -> fields of its ``ParameterConstraints`` and their values.
        share: share of memory to reserve; ``None`` leaves the program's own.
    """

    def __init__(self, planner: Any, fields: Mapping[str, Mapping[str, object]], share: float | None) -> None:
        self._planner = planner
        enumerator = planner._enumerator
        self._before = [(planner, "_constraints"), (enumerator, "_constraints"), (planner, "_storage_reservation")]
        self._values = [getattr(owner, name) for owner, name in self._before]
        if fields:
            planner._constraints = _merged(planner._constraints, fields)
            enumerator._constraints = _merged(enumerator._constraints, fields)
        if share is not None:
            reservation = copy.copy(planner._storage_reservation)
            reservation._percentage = share
            planner._storage_reservation = reservation
        self._forget_options()

    def is_of(self, planner: object) -> bool:
        """Return whether this is the given planner."""
        return self._planner is planner

    def restore(self) -> None:
        """Restore the program's own constraints and reservation."""
        for (owner, name), value in zip(self._before, self._values, strict=True):
            setattr(owner, name, value)
        self._forget_options()

    def _forget_options(self) -> None:
        """Make the enumerator list the options anew: it keeps those of the model that it saw last."""
        enumerator = self._planner._enumerator
        if hasattr(enumerator, "_last_stored_module"):
            enumerator._last_stored_module = None


def _merged(own: Mapping[str, Any] | None, fields: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """Return the program's constraints with the requested fields."""
    kind = sys.modules[_TYPES].ParameterConstraints
    merged = dict(own or {})
    for name, changes in fields.items():
        before = merged.get(name)
        merged[name] = kind(**changes) if before is None else replace(before, **changes)
    return merged
