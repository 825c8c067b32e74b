"""TorchRec hooks: set the sharding and the kernel of each embedding table, and the memory that the planner reserves.

- The three hooks are one change: all that they request is set, or nothing.
- The change is made to the planner's constraints before it plans, also where ``DistributedModelParallel`` makes the
  planner. The planner still places the shards. A table whose value is ``planner`` keeps the program's own constraints.
- If the planner finds no plan so, it plans with the program's own constraints.
- Ranks with different plans would deadlock. They compare the tables and the request through the job's TCPStore first,
  and change nothing unless all are equal.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torchx_cubicml.recorder.apply.torchrec_constraints import ChangedPlanner, obstacle_to_change
from torchx_cubicml.recorder.apply.torchrec_request import KERNEL, SHARDING, SHARE, PlanRequest
from torchx_cubicml.recorder.apply.torchrec_tables import planned_tables
from torchx_cubicml.recorder.steps.torch_hooks import once_imported
from torchx_cubicml.records.hook_table import HOOKS, LEFT_TO_PLANNER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.recorder.apply.torchrec_tables import PlannedTable
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.values import Value

_AGREE_S = 30.0  # time for the other ranks to reach their planner
_PLANNERS = "torchrec.distributed.planner.planners"
_DISAGREE = "the ranks do not plan the same tables in the same way"
_NO_PLAN = "TorchRec's planner finds no plan with these values"
_UNABLE = "Unable to find a plan for this model because of "  # beginning of TorchRec's own message


class PlannerChange:
    """Change of the program's planner that the TorchRec hooks of one process request together.

    Args:
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
    """

    def __init__(self, *, peers: Peers, guard: Callable[[Callable[..., object]], Callable[..., None]]) -> None:
        self._peers = peers
        self._guard = guard
        self._requested: dict[str, Value] = {}
        self._checked: dict[str, Value] = {}
        self._refusal = "the program does not import TorchRec"
        self._refuses_values = False
        self._own_obstacles: dict[str, str] = {}
        self._is_installed = False
        self._is_released = False
        self._has_planned = False
        self._n_agreements = 0
        self._in_collective: list[PlanRequest] | None = None
        self._changed: ChangedPlanner | None = None
        self._offered: dict[str, set[str]] = {}
        self._undo: list[Callable[[], None]] = []

    def add(self, name: str, value: Value, *, only_checks: bool) -> None:
        """Add the value of one hook; with ``only_checks`` it is the program's own."""
        (self._checked if only_checks else self._requested)[name] = value

    def install(self) -> None:
        """Wrap the methods of TorchRec's planner as soon as the program imports it."""
        if not self._is_installed:
            self._is_installed = True
            once_imported(_PLANNERS, self._guard(self._wrap_planner))

    def release(self) -> None:
        """Restore the planner's methods; a plan that is made stays."""
        self._is_released = True
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._changed = None

    def refusal(self, name: str) -> str:
        """Return the reason why one hook was not applied, or could not be, in words; empty without one."""
        if name in self._requested or not self._refuses_values:
            return self._refusal or self._own_obstacles.get(name, "")
        return self._own_obstacles.get(name, "")

    def refuses_values(self, name: str) -> bool:
        """Return whether the reason lies in the requested values, so that others may be set."""
        return name in self._requested and self._refuses_values

    def illegal_values(self, name: str) -> tuple[str, ...]:
        """Return the values of one hook that no sharder of the program offers."""
        offered = self._offered.get(name)
        return tuple(str(word) for group in HOOKS[name] for word in group if offered and word not in offered)

    def _wrap_planner(self) -> None:
        kind = getattr(sys.modules[_PLANNERS], "EmbeddingShardingPlanner", None)
        if kind is None:
            self._refusal = "this TorchRec has no EmbeddingShardingPlanner"
            return
        self._refusal = "the program shards its tables without TorchRec's planner"
        if not self._is_released:
            self._wrap(kind, "collective_plan", self._plan_together)
            self._wrap(kind, "plan", self._plan)

    def _wrap(self, kind: type, name: str, around: Callable[..., object]) -> None:
        original = getattr(kind, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def hooked(planner: object, *args: object, **kwargs: object) -> object:
            call = functools.partial(original, planner, *args, **kwargs)
            return around(planner, call, functools.partial(signature.bind, planner, *args, **kwargs))

        setattr(kind, name, hooked)
        self._undo.append(lambda: setattr(kind, name, original) if getattr(kind, name) is hooked else None)

    def _plan_together(
        self, planner: object, call: Callable[[], object], bind: Callable[[], inspect.BoundArguments]
    ) -> object:
        """Plan by a collective of all ranks, whose first one calls ``_plan``."""
        requests: list[PlanRequest] = []
        self._guard(self._decide)(requests, planner, bind)
        self._in_collective = requests
        try:
            plan = call()
        finally:
            self._in_collective = None
        self._guard(self._check)(requests, plan)
        return plan

    def _plan(self, planner: object, call: Callable[[], object], bind: Callable[[], inspect.BoundArguments]) -> object:
        """Plan with the requested constraints, or with the program's own."""
        requests = self._in_collective
        if requests is None:
            requests = []
            self._guard(self._decide)(requests, planner, bind)
        changed: list[ChangedPlanner] = []
        self._guard(self._change)(changed, planner, requests)
        if not changed:
            return call()
        try:
            plan = call()
        except Exception as error:  # noqa: BLE001 - TorchRec's own, which the program's constraints may not cause
            self._refuse(f"{_NO_PLAN}: {_first_line(error)}", of_values=True)
        else:
            self._guard(self._check)(requests, plan)
            if not self._refuses_values:
                return plan
        changed[0].restore()
        self._changed = None
        return call()

    def _decide(self, requests: list[PlanRequest], planner: Any, bind: Callable[[], inspect.BoundArguments]) -> None:
        """Append the request to ``requests`` if all ranks can make it of this planner."""
        try:
            arguments = bind().arguments
        except TypeError:  # TorchRec itself raises this
            return
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
        agreed = self._agree(request, veto=bool(obstacle or of_values))
        if not agreed:
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
        return obstacle_to_change(planner, sets_share=SHARE in values)

    def _agree(self, request: PlanRequest, *, veto: bool) -> bool:
        self._n_agreements += 1
        digest = "" if veto else request.digest()
        return self._peers.agree(f"torchrec/{self._n_agreements - 1}", digest, within_s=_AGREE_S)

    def _note_offers(self, tables: Sequence[PlannedTable]) -> None:
        kinds = {kind for table in tables for kind in table.kernels}
        kernels = {kernel for table in tables for offered in table.kernels.values() for kernel in offered}
        if kinds:
            self._offered = {SHARDING: {LEFT_TO_PLANNER, *kinds}, KERNEL: {LEFT_TO_PLANNER, *kernels}}

    def _change(self, changed: list[ChangedPlanner], planner: object, requests: Sequence[PlanRequest]) -> None:
        """Change the planner if there is a request, and append it to ``changed``."""
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


class PlannerHook:
    """Hook of one kind of value; the hooks with the same peers are one change.

    Args:
        name: name of the hook in a space file.
        value: one value for all tables, or one for each; the share of memory to reserve.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
        only_checks: whether nothing is changed: the hook finds out whether it could.
    """

    def __init__(
        self,
        name: str,
        value: Value,
        *,
        peers: Peers,
        guard: Callable[[Callable[..., object]], Callable[..., None]],
        only_checks: bool = False,
    ) -> None:
        self._name = name
        self._planner = _CHANGES.setdefault(peers, PlannerChange(peers=peers, guard=guard))
        self._planner.add(name, value, only_checks=only_checks)

    def install(self) -> None:
        """Wrap the methods of TorchRec's planner as soon as the program imports it."""
        self._planner.install()

    def release(self) -> None:
        """Restore the planner's methods; a plan that is made stays."""
        self._planner.release()

    def refusal(self) -> str:
        """Return the reason why the requested change was not made, in words; empty if it was."""
        return self._planner.refusal(self._name)

    def refuses_values(self) -> bool:
        """Return whether the reason lies in the requested values, so that others may be set."""
        return self._planner.refuses_values(self._name)

    def illegal_values(self) -> tuple[str, ...]:
        """Return the values that no sharder of the program offers."""
        return self._planner.illegal_values(self._name)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).removeprefix(_UNABLE)[:200].rstrip(". ")
