"""TorchRec hooks: set the sharding and the kernel of each embedding table, and the memory that the planner reserves.

- The three hooks are one change: all that they request is set, or nothing.
- The change is made to the planner's constraints before it plans, also where ``DistributedModelParallel`` makes the
  planner. The planner still places the shards. A table whose value is ``planner`` keeps the program's own constraints.
- If the planner finds no plan so, it plans with the program's own constraints.
- Ranks with different plans would deadlock. They compare the tables and the request through the job's TCPStore first,
  and change nothing unless all are equal.
"""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torchx_cubicml.recorder.apply.hooks import Hook
from torchx_cubicml.recorder.apply.torchrec_constraints import ChangedPlanner, obstacle_to_change
from torchx_cubicml.recorder.apply.torchrec_tables import planned_tables
from torchx_cubicml.recorder.steps.torch_hooks import once_imported
from torchx_cubicml.records.standard_names import LEFT_TO_PLANNER

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.recorder.apply.torchrec_tables import PlannedTable
    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.values import Value

_SHARDING, _KERNEL, _SHARE = "embedding_sharding", "embedding_kernel", "reserved_share"  # facts of the hooks
_PLANNERS = "torchrec.distributed.planner.planners"
_DISAGREE = "the ranks do not plan the same tables in the same way"
_NO_PLAN = "TorchRec's planner finds no plan with these values"
_UNABLE = "Unable to find a plan for this model because of "  # beginning of TorchRec's own message


class PlanRequest:
    """Values requested for the tables of one model.

    Args:
        tables: tables in TorchRec's order.
        values: fact of a hook -> one value for all tables, or one for each.
        device: TorchRec's name of the kind of device.
    """

    def __init__(self, tables: Sequence[PlannedTable], values: Mapping[str, Value], device: str) -> None:
        shardings, kernels = (_per_table(values.get(fact), len(tables)) for fact in (_SHARDING, _KERNEL))
        self._rows = [*zip(tables, shardings, kernels, strict=False)]
        self._device = device
        share = values.get(_SHARE)
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


class PlannerChange(Hook):
    """Change of the program's planner that the TorchRec hooks of one process request together, by their facts."""

    name = "torchrec"
    nested = True
    unmet = "the program does not import TorchRec"

    def _prepare(self, value: object) -> None:
        self._requested: dict[str, Value] = {}
        self._checked: dict[str, Value] = {}
        self._own_obstacles: dict[str, str] = {}
        self._is_installed = False
        self._has_planned = False
        self._in_collective: list[PlanRequest] | None = None
        self._changed: ChangedPlanner | None = None
        self.words_offered: dict[str, set[str]] = {}

    def add(self, fact: str, value: Value, *, only_checks: bool) -> None:
        """Add the value of one hook, by its fact; with ``only_checks`` it is the program's own."""
        (self._checked if only_checks else self._requested)[fact] = value

    def install(self) -> None:
        """Wrap the methods of TorchRec's planner as soon as the program imports it."""
        if not self._is_installed:
            self._is_installed = True
            once_imported(_PLANNERS, self._guard(self._wrap_planner))

    def release(self) -> None:
        """Restore the planner's methods; a plan that is made stays."""
        super().release()
        self._changed = None

    def refusal_of(self, fact: str) -> str:
        """Return the reason why one hook was not applied, or could not be, in words; empty without one."""
        own = self._own_obstacles.get(fact, "")
        return own if self._refuses_values and fact not in self._requested else self._refusal or own

    def refuses_values_of(self, fact: str) -> bool:
        """Return whether the reason lies in the requested values, so that others may be set."""
        return fact in self._requested and self._refuses_values

    def _wrap_planner(self) -> None:
        kind = getattr(sys.modules[_PLANNERS], "EmbeddingShardingPlanner", None)
        if kind is None:
            self._refusal = "this TorchRec has no EmbeddingShardingPlanner"
            return
        self._refusal = "the program shards its tables without TorchRec's planner"
        for name, around in (("collective_plan", self._plan_together), ("plan", self._plan)):
            self._wrapped.wrap_method(kind, name, partial(partial, around))  # a call (make, call) becomes around(...)

    def _plan_together(self, make: Call, call: inspect.BoundArguments) -> object:
        """Plan by a collective of all ranks, whose first one calls ``_plan``."""
        requests: list[PlanRequest] = []
        self._guard(self._decide)(requests, call)
        self._in_collective = requests
        try:
            plan = make()
        finally:
            self._in_collective = None
        self._guard(self._check)(requests, plan)
        return plan

    def _plan(self, make: Call, call: inspect.BoundArguments) -> object:
        """Plan with the requested constraints, or with the program's own."""
        requests = self._in_collective
        if requests is None:
            requests = []
            self._guard(self._decide)(requests, call)
        changed: list[ChangedPlanner] = []
        self._guard(self._change)(changed, call, requests)
        if not changed:
            return make()
        try:
            plan = make()
        except Exception as error:  # noqa: BLE001 - TorchRec's own, which the program's constraints may not cause
            self._refuse(f"{_NO_PLAN}: {_first_line(error)}", of_values=True)
        else:
            self._guard(self._check)(requests, plan)
            if not self._refuses_values:
                return plan
        changed[0].restore()
        self._changed = None
        return make()

    def _decide(self, requests: list[PlanRequest], call: inspect.BoundArguments) -> None:
        """Append the request to ``requests`` if all ranks can make it of the planner of a call."""
        planner, arguments = call.args[0], call.arguments
        device = str(getattr(getattr(planner, "_topology", None), "compute_device", ""))
        sharders = arguments.get("sharders")
        if sharders is None:
            sharders = sys.modules[_PLANNERS].get_default_sharders()
        tables = planned_tables(arguments["module"], sharders, device)
        if not tables and self._has_planned:
            return
        request = PlanRequest(tables, self._requested, device)
        self._note_offers(tables)
        self._own_obstacles = {
            name: self._obstacle({name: value}, planner, tables) for name, value in self._checked.items()
        }
        obstacle = self._obstacle(self._requested, planner, tables)
        of_values = "" if obstacle else request.obstacle()
        if not self._vote("" if obstacle or of_values else request.digest()):
            self._refuse(obstacle or of_values or _DISAGREE, of_values=bool(of_values))
        elif self._requested:
            self._refuses_values = False
            requests.append(request)
        else:
            self._accept()

    def _obstacle(self, values: Mapping[str, Value], planner: object, tables: Sequence[PlannedTable]) -> str:
        """Return the reason why hooks cannot set any values in this program; empty without one."""
        lengths = {len(value) for value in values.values() if isinstance(value, tuple)}
        if not tables:
            return "the model that the program plans has no embedding tables of TorchRec"
        if lengths - {len(tables)}:
            return f"{max(lengths - {len(tables)})} tables were requested, but the model has {len(tables)}"
        return obstacle_to_change(planner, sets_share=_SHARE in values)

    def _note_offers(self, tables: Sequence[PlannedTable]) -> None:
        kinds = {kind for table in tables for kind in table.kernels}
        kernels = {kernel for table in tables for offered in table.kernels.values() for kernel in offered}
        if kinds:
            self.words_offered = {_SHARDING: {LEFT_TO_PLANNER, *kinds}, _KERNEL: {LEFT_TO_PLANNER, *kernels}}

    def _change(
        self, changed: list[ChangedPlanner], call: inspect.BoundArguments, requests: Sequence[PlanRequest]
    ) -> None:
        """Change the planner of a call if there is a request, and append it to ``changed``."""
        planner = call.args[0]
        if self._changed is not None and self._changed.is_of(planner):
            self._changed.restore()
            self._changed = None
        if requests:
            self._changed = ChangedPlanner(planner, requests[0].fields(), requests[0].share)
            changed.append(self._changed)

    def _check(self, requests: Sequence[PlanRequest], plan: object) -> None:
        """Compare a plan with the request."""
        difference = requests[0].difference(plan) if requests else ""
        if difference and not self._refuses_values:  # else this rank knows why they differ
            self._refuse(difference, of_values=True)
        elif requests and not difference:
            self._accept()

    def _accept(self) -> None:
        self._refusal, self._refuses_values, self._has_planned = "", False, True

    def _refuse(self, reason: str, *, of_values: bool) -> None:
        self._refusal, self._refuses_values = reason, of_values


_CHANGES: WeakKeyDictionary[Peers, PlannerChange] = WeakKeyDictionary()


def change_of(peers: Peers, guard: Guard) -> PlannerChange:
    """Return the change that all hooks with the same peers request."""
    return _CHANGES.setdefault(peers, PlannerChange({}, peers=peers, guard=guard))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).removeprefix(_UNABLE)[:200].rstrip(". ")


def _per_table(value: Value | None, n_tables: int) -> list[str]:
    """Return one word per table, empty where the table is left to the planner."""
    values = value if isinstance(value, tuple) else (value,) * n_tables
    return ["" if each is None or each == LEFT_TO_PLANNER else str(each) for each in values]
