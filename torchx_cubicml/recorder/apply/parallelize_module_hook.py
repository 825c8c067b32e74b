"""Placement hook: places the parameters of modules otherwise than the script's tensor-parallel plans do.

``parallelize_module`` gets another style for modules that the space file names by the keys of the script's own plan:
column-wise, row-wise, or replicated. Inputs and outputs of each module keep their layouts, so that any placement gives
the same result. Within a group of replicated modules, outputs that only element-wise operations carry to other modules
of the group stay whole: a replicated pair of layers needs no communication then.

Where a module is nothing but a linear layer or an embedding under a style of torch's own, nothing else is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.apply.elementwise_flow import only_feeds
from torchx_cubicml.recorder.apply.layer_plan import whole_model
from torchx_cubicml.recorder.apply.placement_styles import (
    COLWISE,
    REPLICATED,
    ROWWISE,
    illegal_placements,
    matched,
    own_placement,
    placed,
    problem,
    sharded_dim,
    shards_last,
)
from torchx_cubicml.recorder.apply.wrapped_function import WrappedFunctions
from torchx_cubicml.records.hook_table import AS_PLANNED, CHANGED

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.values import Value

_AGREE_S = 30.0  # time for the other ranks to reach their first plan
_MAX_KEYS = 20  # of a plan, told in a refusal


class ParallelizeModuleHook:
    """Hook around ``parallelize_module``, until the first step.

    Args:
        value: placement by group of modules, each the keys of the script's plan with commas between them.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
        only_checks: whether nothing is changed: the hook finds out whether it could.
    """

    def __init__(
        self,
        value: Mapping[str, Value],
        *,
        peers: Peers,
        guard: Callable[[Callable[..., object]], Callable[..., None]],
        only_checks: bool = False,
    ) -> None:
        self._groups = [tuple(keys.split(",")) for keys in value]
        self._requested = {key: str(each) for keys, each in value.items() for key in keys.split(",")}
        self._peers = peers
        self._only_checks = only_checks
        self._wrapped = WrappedFunctions(guard)
        self._guarded_check = guard(self._check)
        self._refusal = ""
        self._is_of_values = False  # the refusal
        self._illegal: set[str] = set()
        self._seen: dict[str, None] = {}  # keys of the program's plans
        self._n_plans = 0
        self._n_changed = 0

    def install(self) -> None:
        """Wrap ``parallelize_module``."""
        self._refusal = self._wrapped.wrap_parallelize_module(self._replaced)

    def release(self) -> None:
        """Restore ``parallelize_module``; modules that are already parallelised stay as they are."""
        self._wrapped.release()

    def refusal(self) -> str:
        """Return the reason why the placements are not the requested ones, in words; empty if they are."""
        if self._refusal:
            done = f"; {self._n_changed} plans were changed before that was known" if self._n_changed else ""
            return self._refusal if self._refusal.startswith(CHANGED) else self._refusal + done
        missing = [key for key in self._requested if key not in self._seen]
        if not missing:
            return ""
        if not self._seen:
            return "the program calls parallelize_module with no plan of named modules"
        named = ", ".join([*self._seen][:_MAX_KEYS])
        return f"the script's plans name no {' and no '.join(missing)}; they name {named}"

    def refuses_values(self) -> bool:
        """Return whether other placements may be legal."""
        return self._is_of_values

    def illegal_values(self) -> tuple[str, ...]:
        """Return the placements that do not divide a module equally."""
        return tuple(sorted(self._illegal))

    def _replaced(self, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Return the call that replaces the program's own, if its plan names a module of the request."""
        plan = call.arguments.get("parallelize_plan")
        if not isinstance(plan, dict):
            return None
        self._seen.update(dict.fromkeys(plan))
        module, wanted = call.arguments["module"], [key for key in plan if key in self._requested]
        if not wanted or self._refusal:
            return None
        self._refusal = self._problem(module, call.arguments.get("device_mesh"), {key: plan[key] for key in wanted})
        changes = {key: self._requested[key] for key in wanted if self._is_change(key, plan[key])}
        if self._only_checks or not self._all_agree(wanted, changes) or not changes:
            return None
        styles = _styles(module, plan, changes, self._groups)
        call.arguments["parallelize_plan"] = {**plan, **styles}
        self._n_changed += 1

        def changed() -> object:
            result = make()
            self._guarded_check(module, changes)
            return result

        return changed

    def _is_change(self, key: str, style: object) -> bool:
        return self._requested[key] not in {AS_PLANNED, own_placement(style)}

    def _problem(self, module: nn.Module, mesh: Any, styles: Mapping[str, object]) -> str:
        """Return the reason why the modules of a plan cannot be placed as requested; empty if they can."""
        if mesh is None or getattr(mesh, "ndim", 1) != 1:
            return "the script's plan is for a mesh that its call does not state, or that has several axes"
        n_uses = _n_uses(whole_model(module))
        unequal = ""
        for key, style in styles.items():
            found = matched(module, key)
            reasons = [problem(style, each, n_uses.get(id(getattr(each, "weight", None)), 0)) for each in found]
            reason = next(filter(None, reasons), "" if found else "it names no module of the model")
            if reason:
                return f"{key} cannot be placed otherwise: {reason}"
            illegal = {value for each in found for value in illegal_placements(style, each, mesh.size())}
            self._illegal |= illegal
            if self._requested[key] in illegal:
                unequal = unequal or f"{self._requested[key]} does not divide {key} equally among {mesh.size()} ranks"
        self._is_of_values = bool(unequal)
        return unequal

    def _all_agree(self, wanted: Iterable[str], changes: Mapping[str, str]) -> bool:
        """Return whether a plan is changed on all ranks; they vote at their first plan."""
        self._n_plans += 1
        word = "" if self._refusal else f"{','.join(wanted)} {sorted(changes.items())}"
        if self._n_plans == 1 and not self._peers.agree("placement", word, within_s=_AGREE_S):
            self._refusal = self._refusal or "the ranks do not make the same plan"
        return not self._refusal

    def _check(self, module: nn.Module, changes: Mapping[str, str]) -> None:
        """Compare the placements that torch made with the requested ones."""
        for key, placement in changes.items():
            for each in matched(module, key):
                placements = getattr(each.weight, "placements", ())
                seen = [getattr(one, "dim", None) for one in placements]
                if seen != [sharded_dim(each, placement)]:
                    self._refusal = f"{CHANGED}{key} is not {placement}: its weight has {placements}"
                    return


hook = ParallelizeModuleHook


def _n_uses(model: nn.Module) -> dict[int, int]:
    """Return the number of modules of a model that hold each parameter, by the parameter's id."""
    counts: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    return counts


def _styles(
    module: nn.Module, plan: Mapping[str, Any], changes: Mapping[str, str], groups: Iterable[tuple[str, ...]]
) -> dict[str, object]:
    """Return the changed styles of a plan by their keys.

    Args:
        module: module that the plan is for.
        plan: the script's own.
        changes: key of the plan -> another placement.
        groups: keys of the modules that one parameter places.
    """
    whole = {
        key
        for group in groups
        for key in _whole_within(module, plan, [key for key in group if key in changes], changes)
    }
    return {
        key: placed(
            plan[key],
            placement,
            whole_input=key in whole and own_placement(plan[key]) == ROWWISE,
            whole_output=key in whole and own_placement(plan[key]) == COLWISE,
        )
        for key, placement in changes.items()
    }


def _whole_within(
    module: nn.Module, plan: Mapping[str, Any], group: Iterable[str], changes: Mapping[str, str]
) -> set[str]:
    """Return the modules of a group between which activations may stay whole.

    They are the column-wise modules of one parent, whose outputs only element-wise operations carry to the row-wise
    ones.
    """
    by_parent: dict[str, list[str]] = {}
    for key in group:
        if changes[key] == REPLICATED:
            by_parent.setdefault(key.rpartition(".")[0], []).append(key)
    whole: set[str] = set()
    for parent, keys in by_parent.items():
        sources = [key for key in keys if own_placement(plan[key]) == COLWISE and shards_last(plan[key].output_layouts)]
        sinks = [key for key in keys if own_placement(plan[key]) == ROWWISE and shards_last(plan[key].input_layouts)]
        names = [[key.rpartition(".")[2] for key in each] for each in (sources, sinks)]
        if sources and sinks and all(only_feeds(each, *names) for each in matched(module, parent)):
            whole |= {*sources, *sinks}
    return whole
