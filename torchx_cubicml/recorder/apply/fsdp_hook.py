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
import hashlib
import inspect
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.constructor_layers import ConstructorLayers
from torchx_cubicml.recorder.apply.fsdp_calls import Fsdp1, Fsdp2
from torchx_cubicml.recorder.model.layers import ancestors, repeated_blocks, unwrap, user_class
from torchx_cubicml.space.trainers import HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from torchx_cubicml.recorder.apply.fsdp_calls import WrapperKind
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.trial import Value

_AGREE_S = 30.0  # time for the other ranks to reach their first wrap
_DISAGREE = "the ranks do not wrap the same layers in the same way"
_PLAIN, _HYBRID = (tuple(map(str, family)) for family in HOOKS["fsdp"])


class FsdpHook:
    """Hook around the wrapping functions of FSDP, until the first step.

    Args:
        strategies: one per repeated layer, or one for all.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
        only_checks: whether nothing is changed: the hook finds out whether it could.
    """

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
        self._guarded_change = guard(self._change)
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
        self._wrap(fsdp.FullyShardedDataParallel, "__init__", Fsdp1())
        function = getattr(fsdp, "fully_shard", None)  # torch 2.6 and later
        if function is not None:
            for holder in [module for module in list(sys.modules.values()) if _is_holder(module, function)]:
                self._wrap(holder, "fully_shard", Fsdp2())

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

    def illegal_values(self) -> tuple[str, ...]:
        """Return the strategies that the program's way of wrapping does not allow."""
        return self._illegal_values

    def _wrap(self, holder: object, name: str, kind: WrapperKind) -> None:
        original = getattr(holder, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def hooked(*args: object, **kwargs: object) -> object:
            calls: list[inspect.BoundArguments] = []
            self._guarded_change(calls, functools.partial(signature.bind, *args, **kwargs), kind)
            return original(*calls[0].args, **calls[0].kwargs) if calls else original(*args, **kwargs)

        setattr(holder, name, hooked)
        self._undo.append(lambda: setattr(holder, name, original) if getattr(holder, name) is hooked else None)

    def _change(
        self, calls: list[inspect.BoundArguments], bind: Callable[[], inspect.BoundArguments], kind: WrapperKind
    ) -> None:
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
        self._changed_layers.update(layers)
        strategies += [self._plan[layer][1] for layer in layers]
        strategy = next(filter(None, strategies), "")
        if strategy and not self._only_checks:
            call.arguments.update(kind.changes(call, strategy))
            calls.append(call)

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
        digest = "" if veto else _plan_digest(layers, strategies)
        self._n_agreements += 1
        return self._peers.agree(f"fsdp/{self._n_agreements - 1}", digest, within_s=_AGREE_S)

    def _plan_for_model(self, module: nn.Module, call: inspect.BoundArguments, kind: WrapperKind) -> None:
        """Make the plan for the whole model that a module belongs to, if all ranks can apply it."""
        if self._plan or self._refusal == _DISAGREE or self._is_skipped(module):
            return
        root = max([module, *ancestors(module)], key=lambda around: sum(1 for _ in around.modules()))
        layers = repeated_blocks(root)
        requested = self._strategies if isinstance(self._strategies, tuple) else (self._strategies,) * len(layers)
        refusal = (
            _mismatch(len(requested), len(layers))
            or self._illegal(call, kind, requested)
            or self._in_constructor.mismatch(layers)
        )
        agreed = self._agree(layers, requested, veto=bool(refusal))
        if not agreed or refusal:
            self._skipped_models.append(root)
            self._refusal = refusal or _DISAGREE
            return
        self._refusal = ""
        self._plan = {id(layer): (layer, str(strategy)) for layer, strategy in zip(layers, requested, strict=True)}
        self._illegal_values = _illegal_values(call, kind)
        for layer, strategy in self._plan.values():
            if self._in_constructor.has(layer) or kind.change_wrapped(layer, "" if self._only_checks else strategy):
                self._changed_layers.add(id(layer))

    def _is_skipped(self, module: nn.Module) -> bool:
        return any(module is inner for model in self._skipped_models for inner in model.modules())

    def _check_constructed(self) -> None:
        """Compare the layers that a constructor wrapped with a model that is not wrapped as a whole."""
        model = self._in_constructor.model()
        if model is None or self._plan or self._refusal == _DISAGREE or self._is_skipped(model):
            return
        layers = repeated_blocks(model)
        n_requested = len(self._strategies) if isinstance(self._strategies, tuple) else len(layers)
        self._refusal = _mismatch(n_requested, len(layers)) or self._in_constructor.mismatch(layers)
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


def _is_holder(module: object, function: object) -> bool:
    return getattr(module, "__name__", "").startswith("torch.") and vars(module).get("fully_shard") is function


def _modules_of(wrapped: object) -> list[nn.Module]:
    return list(wrapped) if isinstance(wrapped, list | tuple) else [wrapped]  # type: ignore[list-item] # as FSDP takes


def _mismatch(n_requested: int, n_layers: int) -> str:
    if not n_layers:
        return "the model has no repeated layers when its first module is wrapped"
    if n_requested != n_layers:
        return f"{n_requested} layers were requested, but the model repeats {n_layers}"
    return ""


def _illegal_values(call: inspect.BoundArguments, kind: WrapperKind) -> tuple[str, ...]:
    """Return the strategies that a call cannot have."""
    illegal = []
    for strategy in (*_PLAIN, *_HYBRID):
        try:
            kind.changes(call, strategy)
        except ValueError:
            illegal.append(strategy)
    return tuple(illegal)


def _plan_digest(layers: Sequence[nn.Module], requested: Sequence[Value]) -> str:
    """Return a hash of the layers' classes and shapes and of their strategies; it must be equal on all ranks."""
    shapes = [
        (user_class(layer).__qualname__, [tuple(parameter.shape) for parameter in layer.parameters()])
        for layer in layers
    ]
    return hashlib.sha256(repr((shapes, list(requested))).encode()).hexdigest()
