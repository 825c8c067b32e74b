"""Sequence-parallel hook: switches off the sequence parallelism of the script's tensor-parallel plans.

``parallelize_module`` gets the same plan, in which activations between the layers are replicated and no longer sharded
along the sequence (Korthikanti et al., arXiv 2205.05198, section 4.2, backwards): ``Shard(1)`` becomes ``Replicate()``,
and ``SequenceParallel`` modules work on whole sequences. The sums over the sequence stay the same.

Switching it on is not possible, as a plan without it does not tell which modules may see a part of the sequence. Where
a plan has anything besides torch's own styles, nothing is changed. Code between the modules must treat all positions
alike: position embeddings of the local part only would be wrong.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.apply.tensor_plans import PlanHook

if TYPE_CHECKING:
    import inspect
    from collections.abc import Iterable

    from torch import nn

    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.records.values import Value

_SEQUENCE_DIM = 1
_LAYOUTS = (
    *("input_layouts", "output_layouts", "desired_input_layouts", "desired_output_layouts", "sequence_sharding"),
    *("input_kwarg_layouts", "desired_input_kwarg_layouts"),
)
_STYLES = ("ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput", "PrepareModuleOutput")


class SequenceParallelHook(PlanHook):
    """Hook around ``parallelize_module``, until the first step.

    Its value: whether activations are sharded along the sequence; the script's own plans do that.
    """

    name = "sequence_parallel"
    sets = "sequence parallelism of tensor-parallel plans"
    values = ((True, False),)  # the script's own plan first: it can be switched off
    fact = "sequence_parallel"
    offered = (True, False)
    calls = ("SequenceParallel",)
    marks = ("sequenceparallel",)

    def _prepare(self, value: Value) -> None:
        """Take the requested value; the script's own is not set."""
        self._only_checks = self._only_checks or bool(value)
        self._has_sequence = False  # a plan with sequence parallelism was seen

    def refusal(self) -> str:
        """Return the reason why sequence parallelism is not, or could not be, switched off; empty if it is or could."""
        missing = "" if self._has_sequence else "the program has no sequence-parallel plan"
        return self._refusal + self._done() if self._refusal else missing

    def replaced(self, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Return the call that replaces the program's own, if its plan shards the sequence."""
        plan = call.arguments.get("parallelize_plan")
        styles = [*plan.values()] if isinstance(plan, dict) else [] if plan is None else [plan]
        if self._refusal or not any(_shards_sequence(style) or _is_sequence_parallel(style) for style in styles):
            return None
        self._has_sequence = self._has_sequence or any(map(_is_sequence_parallel, styles))
        self._refusal = _problem(styles, call.arguments["module"], has_sequence=self._has_sequence)
        if self._only_checks or not self._agree_once("replicate"):
            return None
        replicated = {id(style): _replicated(style) for style in styles}
        call.arguments["parallelize_plan"] = (
            {path: replicated[id(style)] for path, style in plan.items()}
            if isinstance(plan, dict)
            else replicated[id(plan)]
        )
        self._n_changed += 1
        return make


hook = SequenceParallelHook


def _shards_sequence(style: object) -> bool:
    """Return whether a style names the sequence dimension of an activation."""
    return any(_is_sequence(each) for name in _LAYOUTS for each in _entries(getattr(style, name, None)))


def _is_sequence_parallel(style: object) -> bool:
    return type(style).__name__ == "SequenceParallel"


def _entries(layouts: Any) -> Iterable[object]:
    if isinstance(layouts, dict):
        return layouts.values()
    return layouts if isinstance(layouts, list | tuple) else (layouts,)


def _is_sequence(placement: object) -> bool:
    return type(placement).__name__ == "Shard" and getattr(placement, "dim", None) == _SEQUENCE_DIM


def _problem(styles: Iterable[object], module: nn.Module, *, has_sequence: bool) -> str:
    """Return the reason why a plan cannot be replicated along the sequence; empty if it can.

    Args:
        styles: styles of the plan.
        module: module that they apply to.
        has_sequence: whether this plan or an earlier one has a ``SequenceParallel`` module.
    """
    from torch.nn.modules.dropout import _DropoutNd

    if not has_sequence:
        return "a plan shards dimension 1, and no SequenceParallel says that it is the sequence"
    if any(isinstance(each, _DropoutNd) and each.p > 0 for each in module.modules()):
        return "the model has dropout, which differs between ranks where activations are replicated"
    return next(filter(None, map(_problem_of_style, styles)), "")


def _problem_of_style(style: object) -> str:
    name = type(style).__name__
    if name not in _STYLES or not type(style).__module__.startswith("torch."):
        return f"the plan has a style of its own, {name}"
    if name == "ColwiseParallel" and any(map(_is_sequence, _entries(getattr(style, "output_layouts", ())))):
        return "the plan shards an output of columns along the sequence"
    sharding = getattr(style, "sequence_sharding", ())
    if not all(map(_is_sequence, sharding)):
        return f"the sequence of the plan has another dimension than {_SEQUENCE_DIM}"
    return ""


def _replicated(style: Any) -> object:
    """Return a copy of a style, in which no activation is sharded along the sequence."""
    from torch.distributed.tensor import Replicate

    def replaced(layouts: Any) -> object:
        if isinstance(layouts, dict):
            return {key: replaced(each) for key, each in layouts.items()}
        if isinstance(layouts, list | tuple):
            return type(layouts)(map(replaced, layouts))
        return Replicate() if _is_sequence(layouts) else layouts

    changed = copy.copy(style)
    for name in _LAYOUTS:
        if hasattr(style, name):
            setattr(changed, name, replaced(getattr(style, name)))
    return changed
