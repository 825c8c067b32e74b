"""FSDP hook: sets the sharding strategy of each repeated layer when the script, which has no flag for it, wraps it.

- The first wrap looks up the whole model, so that a layer is identified by its position in the model and not by the
  order of wrapping. If the model has not as many repeated layers as there are strategies, nothing is changed.
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

from torchx_cubicml.recorder.model.layers import ancestors, repeated_blocks, unwrap, user_class
from torchx_cubicml.space.trainers import HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.trial import Value

_AGREE_S = 30.0  # time for the other ranks to reach their first wrap
_PLAIN, _HYBRID = HOOKS["fsdp"]
_RESHARDS = frozenset({"FULL_SHARD", "HYBRID_SHARD"})


class FsdpHook:
    """Hook around the wrapping functions of FSDP, until the first step.

    Args:
        strategies: one per repeated layer, or one for all.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
    """

    def __init__(
        self, strategies: Value, *, peers: Peers, guard: Callable[[Callable[..., object]], Callable[..., None]]
    ) -> None:
        self._strategies = strategies
        self._peers = peers
        self._guarded_change = guard(self._change)
        self._refusal = "the program wraps no module in FSDP"
        self._n_agreements = 0
        self._skipped_models: list[nn.Module] = []  # whole models that do not match the requested strategies
        self._plan: dict[int, tuple[nn.Module, str]] = {}  # layers by id, kept alive so that no id is reused
        self._changed_layers: set[int] = set()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap FSDP1's constructor and FSDP2's ``fully_shard``."""
        try:
            from torch.distributed import fsdp
        except ImportError as error:  # a torch built without it
            self._refusal = f"this torch has no FSDP: {error}"
            return
        self._wrap(fsdp.FullyShardedDataParallel, "__init__", self._fsdp1_changes)
        function = getattr(fsdp, "fully_shard", None)  # torch 2.6 and later
        if function is not None:
            for holder in [module for module in list(sys.modules.values()) if _is_holder(module, function)]:
                self._wrap(holder, "fully_shard", self._fsdp2_changes)

    def release(self) -> None:
        """Restore FSDP's functions; modules that are already wrapped stay as they are."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._skipped_models.clear()
        self._plan = {
            key: (layer, strategy) for key, (layer, strategy) in self._plan.items() if key not in self._changed_layers
        }

    def refusal(self) -> str:
        """Return the reason why the strategies are not the requested ones, in words; empty if they are."""
        if self._refusal or not self._plan:
            return self._refusal
        return f"{len(self._plan)} of the repeated layers were not wrapped in FSDP; the others were set as requested"

    def _wrap(
        self, holder: object, name: str, changes: Callable[[inspect.BoundArguments, str], dict[str, object]]
    ) -> None:
        original = getattr(holder, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def hooked(*args: object, **kwargs: object) -> object:
            calls: list[inspect.BoundArguments] = []
            self._guarded_change(calls, functools.partial(signature.bind, *args, **kwargs), changes)
            return original(*calls[0].args, **calls[0].kwargs) if calls else original(*args, **kwargs)

        setattr(holder, name, hooked)
        self._undo.append(lambda: setattr(holder, name, original) if getattr(holder, name) is hooked else None)

    def _change(
        self,
        calls: list[inspect.BoundArguments],
        bind: Callable[[], inspect.BoundArguments],
        changes: Callable[[inspect.BoundArguments, str], dict[str, object]],
    ) -> None:
        """Append to ``calls`` the call that replaces the program's own, if it wraps a layer of the plan."""
        try:
            call = bind()
        except TypeError:  # FSDP itself raises this
            return
        modules = _modules_of(call.arguments["module"])
        for module in modules:
            self._plan_for_model(module, call, changes)
        layers = [id(unwrap(module)) for module in modules if id(unwrap(module)) in self._plan]
        if layers:
            call.arguments.update(changes(call, self._plan[layers[0]][1]))
            self._changed_layers.update(layers)
            calls.append(call)

    def _plan_for_model(
        self,
        module: nn.Module,
        call: inspect.BoundArguments,
        changes: Callable[[inspect.BoundArguments, str], dict[str, object]],
    ) -> None:
        """Make the plan for the whole model that a module belongs to, if all ranks can apply it."""
        if self._plan or any(module is inner for model in self._skipped_models for inner in model.modules()):
            return
        root = max([module, *ancestors(module)], key=lambda around: sum(1 for _ in around.modules()))
        layers = repeated_blocks(root)
        requested = self._strategies if isinstance(self._strategies, tuple) else (self._strategies,) * len(layers)
        plan = {id(layer): (layer, str(strategy)) for layer, strategy in zip(layers, requested, strict=False)}
        refusal = _mismatch(len(requested), len(layers)) or self._illegal(call, changes, requested)
        digest = "" if refusal else _plan_digest(layers, requested)
        agreed = self._peers.agree(f"fsdp/{self._n_agreements}", digest, within_s=_AGREE_S)
        self._n_agreements += 1
        if agreed and not refusal:
            self._plan, self._refusal = plan, ""
        else:
            self._skipped_models.append(root)
            self._refusal = refusal or "the ranks do not wrap the same layers in the same way"

    def _illegal(
        self,
        call: inspect.BoundArguments,
        changes: Callable[[inspect.BoundArguments, str], dict[str, object]],
        requested: Sequence[Value],
    ) -> str:
        for strategy in dict.fromkeys(map(str, requested)):
            try:
                changes(call, strategy)
            except ValueError as error:
                return str(error)
        return ""

    def _fsdp1_changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the arguments of FSDP1 for ``strategy``; raise ``ValueError`` if it is not legal here."""
        from torch.distributed.fsdp import ShardingStrategy

        given = call.arguments
        own = getattr(given.get("sharding_strategy"), "name", _PLAIN[0])
        hybrid = own in _HYBRID or isinstance(given.get("process_group"), tuple) or _is_hybrid(given)
        _check_family(strategy, hybrid=hybrid)
        return {"sharding_strategy": ShardingStrategy[strategy]}

    def _fsdp2_changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the arguments of FSDP2 for ``strategy``; raise ``ValueError`` if it is not legal here."""
        if strategy == "NO_SHARD":
            raise ValueError("fully_shard has no NO_SHARD; choose from FULL_SHARD, SHARD_GRAD_OP")
        _check_family(strategy, hybrid=_is_hybrid(call.arguments))
        return {"reshard_after_forward": strategy in _RESHARDS}


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


def _is_hybrid(given: Mapping[str, object]) -> bool:
    mesh = given.get("device_mesh") or given.get("mesh")
    return getattr(mesh, "ndim", 1) > 1


def _check_family(strategy: str, *, hybrid: bool) -> None:
    legal = _HYBRID if hybrid else _PLAIN
    if strategy not in legal:
        kind = "within replicated groups" if hybrid else "over all ranks"
        raise ValueError(f"the script shards {kind}, where {strategy} is illegal; choose from {', '.join(legal)}")


def _plan_digest(layers: Sequence[nn.Module], requested: Sequence[Value]) -> str:
    """Return a hash of the layers' classes and shapes and of their strategies; it must be equal on all ranks."""
    shapes = [
        (user_class(layer).__qualname__, [tuple(parameter.shape) for parameter in layer.parameters()])
        for layer in layers
    ]
    return hashlib.sha256(repr((shapes, list(requested))).encode()).hexdigest()
