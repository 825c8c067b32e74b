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

from torchx_cubicml.recorder.apply.wrapped_function import WrappedFunctions

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Iterable

    from torch import nn

    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.values import Value

_AGREE_S = 30.0  # time for the other ranks to reach their first plan
_SEQUENCE_DIM = 1
_LAYOUTS = (
    *("input_layouts", "output_layouts", "desired_input_layouts", "desired_output_layouts", "sequence_sharding"),
    *("input_kwarg_layouts", "desired_input_kwarg_layouts"),
)
_STYLES = ("ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput", "PrepareModuleOutput")


class SequenceParallelHook:
    """Hook around ``parallelize_module``, until the first step.

    Args:
        value: whether activations are sharded along the sequence; the script's own plans do that.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
        only_checks: whether nothing is changed: the hook finds out whether it could.
    """

    def __init__(
        self,
        value: Value,
        *,
        peers: Peers,
        guard: Callable[[Callable[..., object]], Callable[..., None]],
        only_checks: bool = False,
    ) -> None:
        self._only_checks = only_checks or bool(value)
        self._peers = peers
        self._wrapped = WrappedFunctions(guard)
        self._refusal = ""
        self._has_sequence = False  # a plan with sequence parallelism was seen
        self._n_changed = 0

    def install(self) -> None:
        """Wrap ``parallelize_module``."""
        self._refusal = self._wrapped.wrap_parallelize_module(self._replaced)

    def release(self) -> None:
        """Restore ``parallelize_module``; modules that are already parallelised stay as they are."""
        self._wrapped.release()

    def refusal(self) -> str:
        """Return the reason why sequence parallelism is not, or could not be, switched off; empty if it is or could."""
        if self._refusal and self._n_changed:
            return f"{self._refusal}; {self._n_changed} plans were changed before that was known"
        return self._refusal or ("" if self._has_sequence else "the program has no sequence-parallel plan")

    def refuses_values(self) -> bool:
        """Return that a refusal is not told apart by values: it holds for the program."""
        return False

    def illegal_values(self) -> tuple[str, ...]:
        """Return nothing: both values are legal, or the hook refuses."""
        return ()

    def _replaced(self, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Return the call that replaces the program's own, if its plan shards the sequence."""
        plan = call.arguments.get("parallelize_plan")
        styles = [*plan.values()] if isinstance(plan, dict) else [] if plan is None else [plan]
        if self._refusal or not any(_shards_sequence(style) or _is_sequence_parallel(style) for style in styles):
            return None
        is_first = not self._has_sequence
        self._has_sequence = self._has_sequence or any(map(_is_sequence_parallel, styles))
        self._refusal = _problem(styles, call.arguments["module"], has_sequence=self._has_sequence)
        if self._only_checks or not self._all_agree(is_first=is_first):
            return None
        replicated = {id(style): _replicated(style) for style in styles}
        call.arguments["parallelize_plan"] = (
            {path: replicated[id(style)] for path, style in plan.items()}
            if isinstance(plan, dict)
            else replicated[id(plan)]
        )
        self._n_changed += 1
        return make

    def _all_agree(self, *, is_first: bool) -> bool:
        """Return whether a plan is changed on all ranks; they vote at their first plan."""
        word = "" if self._refusal else "replicate"
        if is_first and not self._peers.agree("plan", word, within_s=_AGREE_S):
            self._refusal = self._refusal or "the ranks do not make the same plan"
        return not self._refusal


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
