"""Placement hook: places the parameters of modules otherwise than the script's tensor-parallel plans do.

``parallelize_module`` gets another style for modules that the space file names by the keys of the script's own plan:
column-wise, row-wise, or replicated. Inputs and outputs of each module keep their layouts, so that any placement gives
the same result. Within a group of replicated modules, outputs that only element-wise operations carry to other modules
of the group stay whole: a replicated pair of layers needs no communication then.

Where a module is nothing but a linear layer or an embedding under a style of torch's own, nothing else is changed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torchx_cubicml.facts.hook_registry import CHANGED
from torchx_cubicml.recorder.apply.tensor_plans import COLWISE, REPLICATED, ROWWISE, PlanHook

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping

    from torch import nn

    from torchx_cubicml.recorder.apply.hooks import Offer, OfferedProgram
    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.records.values import Value

_AS_PLANNED = "plan"  # value that leaves modules to the script's own plan
_MAX_KEYS = 20  # of a plan, told in a refusal


class ParallelizeModuleHook(PlanHook):
    """Hook around ``parallelize_module``, until the first step.

    Its value: placement by group of modules, each the keys of the script's plan with commas between them.
    """

    name = "parallelize_module"
    sets = "placement of the parameters of a group of modules"
    values = ((_AS_PLANNED, COLWISE, ROWWISE, REPLICATED),)
    parts = "modules"
    calls = ("parallelize_module",)
    marks = ("paralleliz", "tensor.parallel")

    def _prepare(self, value: Mapping[str, Value]) -> None:
        self._groups = [tuple(keys.split(",")) for keys in value]
        self._requested = {key: str(each) for keys, each in value.items() for key in keys.split(",")}
        self._guarded_check = self._guard(self._check)
        self._seen: dict[str, None] = {}  # keys of the program's plans

    @classmethod
    def offer(cls, program: OfferedProgram) -> Offer:
        """Return the column- and row-wise modules of the largest tensor-parallel plan in a source."""
        import ast

        from torchx_cubicml.launch.source_files import dotted, nodes_of

        plans = [
            [
                str(key.value)
                for key, style in zip(plan.keys, plan.values, strict=True)
                if isinstance(key, ast.Constant) and key.value and isinstance(style, ast.Call)
                if dotted(style.func).endswith("wiseParallel")
            ]
            for plan in (node for tree in program.trees for node in nodes_of(tree) if isinstance(node, ast.Dict))
        ]
        largest = max(plans, key=len, default=[])
        if not largest or program.called.isdisjoint(cls.calls):
            return (), []
        modules = json.dumps(largest, ensure_ascii=False)
        return (_AS_PLANNED, REPLICATED), [f"modules = {modules} # keep those that go together"]

    def refusal(self) -> str:
        """Return the reason why the placements are not the requested ones, in words; empty if they are."""
        if self._refusal:
            return self._refusal if self._refusal.startswith(CHANGED) else self._refusal + self._done()
        missing = [key for key in self._requested if key not in self._seen]
        if not missing:
            return ""
        if not self._seen:
            return "the program calls parallelize_module with no plan of named modules"
        named = ", ".join([*self._seen][:_MAX_KEYS])
        return f"the script's plans name no {' and no '.join(missing)}; they name {named}"

    def replaced(self, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Return the call that replaces the program's own, if its plan names a module of the request."""
        from torchx_cubicml.recorder.apply.placement_styles import changed_styles, own_placement

        plan = call.arguments.get("parallelize_plan")
        if not isinstance(plan, dict):
            return None
        self._seen.update(dict.fromkeys(plan))
        module, wanted = call.arguments["module"], [key for key in plan if key in self._requested]
        if not wanted or self._refusal:
            return None
        self._refusal = self._problem(module, call.arguments.get("device_mesh"), {key: plan[key] for key in wanted})
        changes = {key: self._requested[key] for key in wanted}
        changes = {key: to for key, to in changes.items() if to not in {_AS_PLANNED, own_placement(plan[key])}}
        if self._only_checks or not self._agree_once(f"{','.join(wanted)} {sorted(changes.items())}") or not changes:
            return None
        call.arguments["parallelize_plan"] = {**plan, **changed_styles(module, plan, changes, self._groups)}
        self._n_changed += 1

        def changed() -> object:
            result = make()
            self._guarded_check(module, changes)
            return result

        return changed

    def _problem(self, module: nn.Module, mesh: Any, styles: Mapping[str, object]) -> str:
        """Return the reason why the modules of a plan cannot be placed as requested; empty if they can."""
        from torchx_cubicml.recorder.apply.layer_plan import whole_model
        from torchx_cubicml.recorder.apply.placement_styles import illegal_placements, matched, problem

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
            self._illegal = sorted({*self._illegal, *illegal})
            if self._requested[key] in illegal:
                unequal = unequal or f"{self._requested[key]} does not divide {key} equally among {mesh.size()} ranks"
        self._refuses_values = bool(unequal)
        return unequal

    def _check(self, module: nn.Module, changes: Mapping[str, str]) -> None:
        """Compare the placements that torch made with the requested ones."""
        from torchx_cubicml.recorder.apply.placement_styles import matched, sharded_dim

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
