"""FSDP hook: sets the sharding strategy of each repeated layer when the script, which has no flag for it, wraps it.

- The first wrap looks up the whole model, so that a layer is identified by its position in the model and not by the
  order of wrapping. If the model has not as many repeated layers as there are strategies, nothing is changed.
- A layer that the model's constructor wraps is not part of a model yet. FSDP2 can change it later, and does so when the
  model is wrapped. FSDP1 cannot: such layers are counted by their class in the order of wrapping.
- FSDP1 gets another ``sharding_strategy``, FSDP2 another ``reshard_after_forward``. All other arguments stay.
- Ranks that shard a layer differently would deadlock. They compare their plans through the job's TCPStore first, and
  change nothing unless all plans are equal.
"""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.constructor_layers import ConstructorLayers
from torchx_cubicml.recorder.apply.fsdp_calls import Fsdp1, Fsdp2
from torchx_cubicml.recorder.apply.layer_plan import mismatch, per_layer, plan_digest, whole_model
from torchx_cubicml.recorder.model.layers import repeated_blocks, unwrap
from torchx_cubicml.records.hook_table import HOOKS, RESHARD_SIZES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from torchx_cubicml.recorder.apply.fsdp_calls import WrapperKind
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.values import Value

_AGREE_S = 30.0  # time for the other ranks to reach their first wrap
_WHEN = "when its first module is wrapped"
_UNORDERED = "the ranks do not wrap the layers in the same order, so groups of ranks cannot be made"
_DISAGREE = "the ranks do not wrap the same layers in the same way"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedCall:
    """Call that replaces the program's own, and the argument of the program that it replaces."""

    call: inspect.BoundArguments
    own: object


class FsdpHook:
    """Hook around the wrapping functions of FSDP, until the first step.

    Args:
        strategies: one per repeated layer, or one for all.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
        only_checks: whether nothing is changed: the hook finds out whether it could.
    """

    name = "fsdp"
    kinds: tuple[WrapperKind, WrapperKind] = (Fsdp1(), Fsdp2())

    def __init__(
        self,
        strategies: Value,
        *,
        peers: Peers,
        guard: Callable[[Callable[..., object]], Callable[..., None]],
        only_checks: bool = False,
    ) -> None:
        self._strategies = strategies
        self._peers = peers
        self._only_checks = only_checks
        self._guarded_change, self._guarded_finish = guard(self._change), guard(self._finish)
        self._refusal = "the program wraps no module in FSDP"
        self._n_agreements = 0
        self._skipped_models: list[nn.Module] = []  # whole models that do not match the requested strategies
        self._plan: dict[int, tuple[nn.Module, str]] = {}  # layers by id, kept alive so that no id is reused
        self._changed_layers: set[int] = set()
        self._in_constructor = ConstructorLayers(strategies)
        self._illegal_values: tuple[str, ...] = ()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap FSDP1's constructor and FSDP2's ``fully_shard``."""
        try:
            from torch.distributed import fsdp
        except ImportError as error:  # a torch built without it
            self._refusal = f"this torch has no FSDP: {error}"
            return
        self._wrap(fsdp.FullyShardedDataParallel, "__init__", self.kinds[0])
        function = getattr(fsdp, "fully_shard", None)  # torch 2.6 and later
        if function is not None:
            for holder in [module for module in list(sys.modules.values()) if _is_holder(module, function)]:
                self._wrap(holder, "fully_shard", self.kinds[1])

    def release(self) -> None:
        """Restore FSDP's functions; modules that are already wrapped stay as they are."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._check_constructed()
        self._skipped_models.clear()
        self._plan = {
            key: (layer, strategy) for key, (layer, strategy) in self._plan.items() if key not in self._changed_layers
        }

    def refusal(self) -> str:
        """Return the reason why the strategies are not the requested ones, in words; empty if they are."""
        if self._refusal or not self._plan:
            early = self._in_constructor.count if self._refusal and not self._only_checks else 0
            return self._refusal + (f"; {early} layers were set before that was known" if early else "")
        return f"{len(self._plan)} of the repeated layers were not wrapped in FSDP; the others were set as requested"

    def refuses_values(self) -> bool:
        """Return False: a refusal holds for all strategies but those of ``illegal_values``."""
        return False

    def illegal_values(self) -> tuple[str, ...]:
        """Return the strategies that the program's way of wrapping does not allow."""
        return self._illegal_values

    def _wrap(self, holder: object, name: str, kind: WrapperKind) -> None:
        original = getattr(holder, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def hooked(*args: object, **kwargs: object) -> object:
            calls: list[_ChangedCall] = []
            self._guarded_change(calls, functools.partial(signature.bind, *args, **kwargs), kind)
            if not calls:
                return original(*args, **kwargs)
            result = original(*calls[0].call.args, **calls[0].call.kwargs)
            self._guarded_finish(calls[0], kind)
            return result

        setattr(holder, name, hooked)
        self._undo.append(lambda: setattr(holder, name, original) if getattr(holder, name) is hooked else None)

    def _change(self, calls: list[_ChangedCall], bind: Callable[[], inspect.BoundArguments], kind: WrapperKind) -> None:
        """Append to ``calls`` the call that replaces the program's own, if it wraps a layer of the plan."""
        try:
            call = bind()
        except TypeError:  # FSDP itself raises this
            return
        modules = _modules_of(call.arguments["module"])
        strategies = [self._early_strategy(module, call, kind) for module in modules if self._is_early(module)]
        for module in modules if not strategies else ():
            self._plan_for_model(module, call, kind)
        layers = [id(unwrap(module)) for module in modules if id(unwrap(module)) in self._plan]
        if not self._is_in_order(layers):
            return
        self._changed_layers.update(layers)
        strategies += [self._plan[layer][1] for layer in layers]
        strategy = next(filter(None, strategies), "")
        if strategy and not self._only_checks:
            changes = kind.changes(call, strategy)
            own = [call.arguments.get(name) for name in changes]
            call.arguments.update(changes)
            calls.append(_ChangedCall(call=call, own=own[0]))

    def _finish(self, changed: _ChangedCall, kind: WrapperKind) -> None:
        """Complete the change after the program's call, whose first argument is the wrapper under FSDP1."""
        kind.finish(changed.call.args[0], changed.own)

    def _is_in_order(self, layers: Sequence[int]) -> bool:
        """Return whether all ranks wrap these layers now, which matters if FSDP makes groups of ranks for them."""
        if self._only_checks or not any(self._plan[layer][1] in RESHARD_SIZES for layer in layers):
            return True
        if self._refusal != _UNORDERED:
            positions = list(self._plan)
            self._n_agreements += 1
            word = ",".join(str(positions.index(layer)) for layer in layers)
            if self._peers.agree(f"{self.name}/{self._n_agreements - 1}", word, within_s=_AGREE_S):
                return True
            self._refusal = _UNORDERED
        return False

    def _is_early(self, module: nn.Module) -> bool:
        """Return whether a constructor wraps a layer before there is a plan for its model."""
        return not self._plan and self._refusal != _DISAGREE and self._in_constructor.is_early(module)

    def _early_strategy(self, module: nn.Module, call: inspect.BoundArguments, kind: WrapperKind) -> str:
        """Return the strategy of a layer that a constructor wraps; empty where none is set, or it can be set later."""
        if kind.can_change_wrapped:
            self._refusal = "the script wraps layers in a constructor, and not the model around them"
            return ""
        strategy = self._in_constructor.strategy_of_next(module)
        illegal = self._illegal(call, kind, [strategy]) if strategy else ""
        if not strategy or illegal or not self._agree([module], [strategy]):
            self._refusal = illegal or (_DISAGREE if strategy else self._refusal)
            return ""
        self._in_constructor.add(module)
        return strategy

    def _agree(self, layers: Sequence[nn.Module], strategies: Sequence[Value], *, veto: bool = False) -> bool:
        """Return whether all ranks plan the same strategies for the same layers."""
        digest = "" if veto else plan_digest(layers, strategies)
        self._n_agreements += 1
        return self._peers.agree(f"{self.name}/{self._n_agreements - 1}", digest, within_s=_AGREE_S)

    def _plan_for_model(self, module: nn.Module, call: inspect.BoundArguments, kind: WrapperKind) -> None:
        """Make the plan for the whole model that a module belongs to, if all ranks can apply it."""
        if self._plan or self._refusal == _DISAGREE or self._is_skipped(module):
            return
        root = whole_model(module)
        layers = repeated_blocks(root)
        requested = per_layer(self._strategies, len(layers))
        refusal = (
            mismatch(len(requested), len(layers), when=_WHEN)
            or self._illegal(call, kind, requested)
            or self._in_constructor.mismatch(layers)
            or _unsettable(kind, layers, requested)
        )
        agreed = self._agree(layers, requested, veto=bool(refusal))
        if not agreed or refusal:
            self._skipped_models.append(root)
            self._refusal = refusal or _DISAGREE
            return
        self._refusal = ""
        self._plan = {id(layer): (layer, str(strategy)) for layer, strategy in zip(layers, requested, strict=True)}
        self._illegal_values = tuple(
            str(value) for family in HOOKS[self.name] for value in family if self._illegal(call, kind, [value])
        )
        for layer, strategy in self._plan.values():
            if self._in_constructor.has(layer) or kind.change_wrapped(layer, "" if self._only_checks else strategy):
                self._changed_layers.add(id(layer))
        self.planned(layers)

    def planned(self, layers: Sequence[nn.Module]) -> None:
        """Do nothing more once there is a plan for the layers."""

    def _is_skipped(self, module: nn.Module) -> bool:
        return any(module is inner for model in self._skipped_models for inner in model.modules())

    def _check_constructed(self) -> None:
        """Compare the layers that a constructor wrapped with a model that is not wrapped as a whole."""
        model = self._in_constructor.model()
        if model is None or self._plan or self._refusal == _DISAGREE or self._is_skipped(model):
            return
        layers = repeated_blocks(model)
        n_requested = len(per_layer(self._strategies, len(layers)))
        self._refusal = mismatch(n_requested, len(layers), when=_WHEN) or self._in_constructor.mismatch(layers)
        n_left = len(layers) - self._in_constructor.count
        if not self._refusal and n_left:
            self._refusal = f"{n_left} of the repeated layers were not wrapped in FSDP"

    def _illegal(self, call: inspect.BoundArguments, kind: WrapperKind, requested: Sequence[Value]) -> str:
        for strategy in dict.fromkeys(map(str, requested)):
            try:
                kind.changes(call, strategy)
            except ValueError as error:
                return str(error)
        return ""


hook = FsdpHook


def _unsettable(kind: WrapperKind, layers: Sequence[nn.Module], requested: Sequence[Value]) -> str:
    """Return in words which value a layer that a constructor has wrapped cannot be changed to; empty without one."""
    sized = [(layer, value) for layer, value in zip(layers, requested, strict=False) if value in RESHARD_SIZES]
    value = next((value for layer, value in sized if kind.change_wrapped(layer, "")), None)
    return f"a layer that is wrapped in a constructor cannot be set to {value}" if value is not None else ""


def _is_holder(module: object, function: object) -> bool:
    return getattr(module, "__name__", "").startswith("torch.") and vars(module).get("fully_shard") is function


def _modules_of(wrapped: object) -> list[nn.Module]:
    return list(wrapped) if isinstance(wrapped, list | tuple) else [wrapped]  # type: ignore[list-item] # as FSDP takes
