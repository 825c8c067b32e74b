"""Sets the sharding strategy of each repeated layer where the program wraps it: for a script that has no flag for it.

- The model is looked up at the first wrap, whole, so that a layer is known by its place in the model and not by when it
  is wrapped; where the model has not as many repeated layers as strategies are asked for, nothing is changed.
- FSDP1 gets another ``sharding_strategy``, FSDP2 another ``reshard_after_forward``; everything else stays the script's.
- Ranks that shard a layer differently would wait for each other for ever. They compare what they are about to do
  through the job's TCPStore first, and change nothing unless all came with the same.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import ancestors, own_class, repeated_blocks, unwrap
from torchx_cubicml.space.trainers import HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.trial import Value

_AGREE_S = 30.0  # for the other ranks to come to their first wrap
_PLAIN, _HYBRID = HOOKS["fsdp"]
_RESHARDS = frozenset({"FULL_SHARD", "HYBRID_SHARD"})


class FsdpHook:
    """Stands in front of FSDP until the first step.

    Args:
        strategies: one per repeated layer, or one for all.
        peers: the other ranks.
        guard: for what runs within the program's calls.
    """

    def __init__(
        self, strategies: Value, *, peers: Peers, guard: Callable[[Callable[..., object]], Callable[..., None]]
    ) -> None:
        self._strategies = strategies
        self._peers = peers
        self._decide = guard(self._change)
        self._refusal = "the program wraps no module in FSDP"
        self._looked = 0
        self._passed_by: list[nn.Module] = []  # whole models that are not the one asked for
        self._plan: dict[int, tuple[nn.Module, str]] = {}  # layer by its id, kept alive so that the id stays its own
        self._set: set[int] = set()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Stand in front of both FSDP1's class and FSDP2's function."""
        try:
            from torch.distributed import fsdp
        except ImportError as error:  # a torch built without it
            self._refusal = f"this torch has no FSDP: {error}"
            return
        self._stand_before(fsdp.FullyShardedDataParallel, "__init__", self._fsdp1_changes)
        function = getattr(fsdp, "fully_shard", None)  # torch 2.6 and later
        if function is not None:
            for holder in [module for module in list(sys.modules.values()) if _holds(module, function)]:
                self._stand_before(holder, "fully_shard", self._fsdp2_changes)

    def release(self) -> None:
        """Step aside; what was wrapped stays as it is."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._passed_by.clear()
        self._plan = {key: (layer, strategy) for key, (layer, strategy) in self._plan.items() if key not in self._set}

    def refusal(self) -> str:
        """Return why the strategies are not what was asked for, in words; empty where they are."""
        if self._refusal or not self._plan:
            return self._refusal
        return f"{len(self._plan)} of the repeated layers were not wrapped in FSDP, the others are as asked for"

    def _stand_before(
        self, holder: object, name: str, changes: Callable[[inspect.BoundArguments, str], dict[str, object]]
    ) -> None:
        original = getattr(holder, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def hooked(*args: object, **kwargs: object) -> object:
            calls: list[inspect.BoundArguments] = []
            self._decide(calls, functools.partial(signature.bind, *args, **kwargs), changes)
            return original(*calls[0].args, **calls[0].kwargs) if calls else original(*args, **kwargs)

        setattr(holder, name, hooked)
        self._undo.append(lambda: setattr(holder, name, original) if getattr(holder, name) is hooked else None)

    def _change(
        self,
        calls: list[inspect.BoundArguments],
        bind: Callable[[], inspect.BoundArguments],
        changes: Callable[[inspect.BoundArguments, str], dict[str, object]],
    ) -> None:
        """Leave in ``calls`` the call to make in place of the program's own."""
        try:
            call = bind()
        except TypeError:  # FSDP will say so itself
            return
        modules = _modules_of(call.arguments["module"])
        for module in modules:
            self._look_for_model(module, call, changes)
        layers = [id(unwrap(module)) for module in modules if id(unwrap(module)) in self._plan]
        if layers:
            call.arguments.update(changes(call, self._plan[layers[0]][1]))
            self._set.update(layers)
            calls.append(call)

    def _look_for_model(
        self,
        module: nn.Module,
        call: inspect.BoundArguments,
        changes: Callable[[inspect.BoundArguments, str], dict[str, object]],
    ) -> None:
        """Plan for the whole model that a module belongs to, if it is the one that was asked for."""
        if self._plan or any(module is inner for passed in self._passed_by for inner in passed.modules()):
            return
        root = max([module, *ancestors(module)], key=lambda around: sum(1 for _ in around.modules()))
        layers = repeated_blocks(root)
        asked = self._strategies if isinstance(self._strategies, tuple) else (self._strategies,) * len(layers)
        plan = {id(layer): (layer, str(strategy)) for layer, strategy in zip(layers, asked, strict=False)}
        refusal = _mismatch(len(asked), len(layers)) or self._illegal(call, changes, asked)
        agreed = self._peers.agree(f"fsdp/{self._looked}", "" if refusal else _word(layers, asked), within_s=_AGREE_S)
        self._looked += 1
        if agreed and not refusal:
            self._plan, self._refusal = plan, ""
        else:
            self._passed_by.append(root)
            self._refusal = refusal or "not every rank is about to wrap the same layers in the same way"

    def _illegal(
        self,
        call: inspect.BoundArguments,
        changes: Callable[[inspect.BoundArguments, str], dict[str, object]],
        asked: Sequence[Value],
    ) -> str:
        for strategy in dict.fromkeys(map(str, asked)):
            try:
                changes(call, strategy)
            except ValueError as error:
                return str(error)
        return ""

    def _fsdp1_changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the arguments of FSDP1 that make it follow ``strategy``; ``ValueError`` where it cannot."""
        from torch.distributed.fsdp import ShardingStrategy

        given = call.arguments
        own = getattr(given.get("sharding_strategy"), "name", _PLAIN[0])
        hybrid = own in _HYBRID or isinstance(given.get("process_group"), tuple) or _is_hybrid(given)
        _check_family(strategy, hybrid=hybrid)
        return {"sharding_strategy": ShardingStrategy[strategy]}

    def _fsdp2_changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the arguments of FSDP2 that make it follow ``strategy``; ``ValueError`` where it cannot."""
        if strategy == "NO_SHARD":
            raise ValueError("fully_shard has no NO_SHARD; legal are FULL_SHARD, SHARD_GRAD_OP")
        _check_family(strategy, hybrid=_is_hybrid(call.arguments))
        return {"reshard_after_forward": strategy in _RESHARDS}


hook = FsdpHook


def _holds(module: object, function: object) -> bool:
    return getattr(module, "__name__", "").startswith("torch.") and vars(module).get("fully_shard") is function


def _modules_of(wrapped: object) -> list[nn.Module]:
    return list(wrapped) if isinstance(wrapped, list | tuple) else [wrapped]  # type: ignore[list-item] # as FSDP takes


def _mismatch(asked: int, there: int) -> str:
    if not there:
        return "no model with repeated layers is there when the first module is wrapped"
    return f"{asked} layers were asked for, the model repeats {there}" if asked != there else ""


def _is_hybrid(given: Mapping[str, object]) -> bool:
    mesh = given.get("device_mesh") or given.get("mesh")
    return getattr(mesh, "ndim", 1) > 1


def _check_family(strategy: str, *, hybrid: bool) -> None:
    legal = _HYBRID if hybrid else _PLAIN
    if strategy not in legal:
        kind = "within replicated groups" if hybrid else "over all ranks"
        raise ValueError(f"the script shards {kind}, where {strategy} is not legal; legal are {', '.join(legal)}")


def _word(layers: Sequence[nn.Module], asked: Sequence[Value]) -> str:
    """Return what every rank must come with: the layers' classes and shapes, and what each is to be."""
    shapes = [
        (own_class(layer).__qualname__, [tuple(parameter.shape) for parameter in layer.parameters()])
        for layer in layers
    ]
    return hashlib.sha256(repr((shapes, list(asked))).encode()).hexdigest()
