"""Request of the TorchRec hooks for the tables of one model: sharding and kernel of each, and the reserved memory."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from torchx_cubicml.records.standard_names import LEFT_TO_PLANNER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.recorder.apply.torchrec_tables import PlannedTable
    from torchx_cubicml.records.values import Value

SHARDING, KERNEL, SHARE = "embedding_sharding", "embedding_kernel", "reserved_share"  # facts of the hooks


class PlanRequest:
    """Values requested for the tables of one model.

    Args:
        tables: tables in TorchRec's order.
        values: fact of a hook -> one value for all tables, or one for each.
        device: TorchRec's name of the kind of device.
    """

    def __init__(self, tables: Sequence[PlannedTable], values: Mapping[str, Value], device: str) -> None:
        shardings, kernels = (_per_table(values.get(fact), len(tables)) for fact in (SHARDING, KERNEL))
        self._rows = [*zip(tables, shardings, kernels, strict=False)]
        self._device = device
        share = values.get(SHARE)
        self.share = float(share) if isinstance(share, int | float) else None

    def obstacle(self) -> str:
        """Return the reason why these values cannot be set, in words; empty if they can be tried."""
        wanted: dict[str, tuple[str, str]] = {}
        for table, sharding, kernel in self._rows:
            if obstacle := table.obstacle(sharding, kernel, self._device):
                return obstacle
            if wanted.setdefault(table.name, (sharding, kernel)) != (sharding, kernel):
                return f"two tables have the name {table.name}, and TorchRec constrains tables by name"
        return ""

    def fields(self) -> dict[str, dict[str, object]]:
        """Return table -> fields of TorchRec's ``ParameterConstraints`` and their values."""
        fields: dict[str, dict[str, object]] = {}
        for table, sharding, kernel in self._rows:
            changes = {"sharding_types": [sharding]} if sharding else {}
            changes |= {"compute_kernels": [kernel]} if kernel else {}
            if changes:
                fields[table.name] = dict(changes)
        return fields

    def difference(self, plan: Any) -> str:
        """Return the first difference of a plan from the request, in words; empty without one."""
        planned = {name: each for module in plan.plan.values() for name, each in module.items()}
        for table, sharding, kernel in self._rows:
            found = planned.get(table.name)
            if found is None and (sharding or kernel):
                return f"TorchRec's plan leaves out the table {table.name}"
            for wanted, got in ((sharding, found and found.sharding_type), (kernel, found and found.compute_kernel)):
                if wanted and wanted != got:
                    return f"TorchRec's plan has {got} for the table {table.name}"
        return ""

    def digest(self) -> str:
        """Return a hash of the tables and their values; it must be equal on all ranks."""
        rows = [(table.name, table.rows, table.width, *words) for table, *words in self._rows]
        return hashlib.sha256(repr((rows, self.share)).encode()).hexdigest()


def _per_table(value: Value | None, n_tables: int) -> list[str]:
    """Return one word per table, empty where the table is left to the planner."""
    values = value if isinstance(value, tuple) else (value,) * n_tables
    return ["" if each is None or each == LEFT_TO_PLANNER else str(each) for each in values]
