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

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from torchx_cubicml.recorder.apply.hooks import Hook
from torchx_cubicml.records.standard_names import RESHARD_SIZES

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping, Sequence

    from torch import nn

    from torchx_cubicml.recorder.apply.hooks import Offer, OfferedProgram
    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.records.values import Value

_PLAIN = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
_HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_RESHARDS = frozenset({"FULL_SHARD", "HYBRID_SHARD"})
_WHEN = "when its first module is wrapped"
_UNORDERED = "the ranks do not wrap the layers in the same order, so groups of ranks cannot be made"
_DISAGREE = "the ranks do not wrap the same layers in the same way"


class WrapperKind:
    """Argument of one generation of FSDP that a hook changes per layer, called its strategy here."""

    can_change_wrapped = False
    """True if the strategy of a layer that is already wrapped can be changed."""

    def changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the arguments for ``strategy``; raise ``ValueError`` if it is not legal here."""
        raise NotImplementedError

    def change_wrapped(self, layer: nn.Module, strategy: str) -> bool:
        """Change the strategy of a layer that is already wrapped, and return whether it is one that can be changed.

        With an empty strategy nothing is changed.
        """
        return False

    def finish(self, wrapper: object, own: object) -> None:
        """Complete the change of a layer that was wrapped.

        Args:
            wrapper: of the layer; only FSDP1 has one.
            own: argument of the script that was replaced; ``None`` without one.
        """


class Fsdp1(WrapperKind):
    """``FullyShardedDataParallel``, which lays out the storage of parameters as it wraps them."""

    def changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the ``sharding_strategy`` of ``strategy``; raise ``ValueError`` if it is not legal here."""
        from torch.distributed.fsdp import ShardingStrategy

        given = call.arguments
        own = getattr(given.get("sharding_strategy"), "name", _PLAIN[0])
        hybrid = own in _HYBRID or isinstance(given.get("process_group"), tuple) or _is_hybrid(given)
        _check_family(strategy, hybrid=hybrid)
        return {"sharding_strategy": ShardingStrategy[strategy]}


class Fsdp2(WrapperKind):
    """``fully_shard``."""

    can_change_wrapped = True

    def changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the ``reshard_after_forward`` of ``strategy``; raise ``ValueError`` if it is not legal here."""
        if strategy == "NO_SHARD":
            raise ValueError("fully_shard has no NO_SHARD; choose from FULL_SHARD, SHARD_GRAD_OP")
        if strategy in RESHARD_SIZES:
            return {"reshard_after_forward": _check_size(strategy, call.arguments)}
        _check_family(strategy, hybrid=_is_hybrid(call.arguments))
        return {"reshard_after_forward": strategy in _RESHARDS}

    def change_wrapped(self, layer: nn.Module, strategy: str) -> bool:
        """Set the strategy of a wrapped layer by ``set_reshard_after_forward``; return whether it can be set.

        That function takes no size of a group.
        """
        if strategy in RESHARD_SIZES:
            return False
        change = getattr(type(layer), "set_reshard_after_forward", None)  # a wrapper would forward the name
        if change is not None and strategy:
            change(layer, strategy in _RESHARDS, recurse=False)
        return change is not None


class FsdpHook(Hook):
    """Hook around the wrapping functions of FSDP, until the first step.

    Its value: one per repeated layer, or one for all.
    """

    name = "fsdp"
    sets = "sharding strategy of each layer that the script wraps in FSDP"
    values: ClassVar[tuple[tuple[str | bool, ...], ...]] = (
        (*_PLAIN, *RESHARD_SIZES),  # over all ranks
        _HYBRID,  # within replicated groups
    )
    offered: ClassVar[tuple[str | bool, ...]] = _PLAIN
    per = "layer"
    fact = "sharding_strategy"
    calls = ("FullyShardedDataParallel", "fully_shard")
    marks = ("fsdp", "fully_shard", "fullyshard")
    nested = True  # the constructor of FSDP1 wraps the modules within
    absent_under: ClassVar = {"sharding_strategy": "DDP"}
    unmet = "the program wraps no module in FSDP"

    def _prepare(self, strategies: Value) -> None:
        from torchx_cubicml.recorder.apply.constructor_layers import ConstructorLayers

        self._strategies = strategies
        self._skipped_models: list[nn.Module] = []  # whole models that do not match the requested strategies
        self._plan: dict[int, tuple[nn.Module, str]] = {}  # layers by id, kept alive so that no id is reused
        self._changed_layers: set[int] = set()
        self._in_constructor = ConstructorLayers(strategies)

    @classmethod
    def offer(cls, program: OfferedProgram) -> Offer:
        """Return the strategies, for FSDP2 without ``NO_SHARD``."""
        choices, lines = super().offer(program)
        return choices if cls.calls[0] in program.called else choices[:2], lines

    @classmethod
    def kinds(cls) -> tuple[WrapperKind, WrapperKind]:
        """Return the argument that the hook changes, of FSDP1 and of FSDP2."""
        return Fsdp1(), Fsdp2()

    def install(self) -> None:
        """Wrap FSDP1's constructor and FSDP2's ``fully_shard``."""
        try:
            from torch.distributed import fsdp
        except ImportError as error:  # a torch built without it
            self._refusal = f"this torch has no FSDP: {error}"
            return
        first, second = (partial(self._replaced, kind) for kind in self.kinds())
        self._wrapped.wrap_method(fsdp.FullyShardedDataParallel, "__init__", first)
        if hasattr(fsdp, "fully_shard"):  # torch 2.6 and later
            self._wrapped.wrap(fsdp.fully_shard, second)

    def release(self) -> None:
        """Restore FSDP's functions; modules that are already wrapped stay as they are."""
        super().release()
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

    def _replaced(self, kind: WrapperKind, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Return the call that replaces the program's own, if it wraps a layer of the plan."""
        from torchx_cubicml.recorder.model.layers import unwrap

        modules = modules_of(call.arguments["module"])
        strategies = [self._early_strategy(module, call, kind) for module in modules if self._is_early(module)]
        for module in modules if not strategies else ():
            self._plan_for_model(module, call, kind)
        layers = [id(unwrap(module)) for module in modules if id(unwrap(module)) in self._plan]
        if not self._is_in_order(layers):
            return None
        self._changed_layers.update(layers)
        strategies += [self._plan[layer][1] for layer in layers]
        strategy = next(filter(None, strategies), "")
        if not strategy or self._only_checks:
            return None
        changes = kind.changes(call, strategy)
        own = next(call.arguments.get(name) for name in changes)
        call.arguments.update(changes)
        finish = self._guard(kind.finish)

        def changed() -> object:
            result = make()
            finish(call.args[0], own)  # under FSDP1, this is the wrapper
            return result

        return changed

    def _is_in_order(self, layers: Sequence[int]) -> bool:
        """Return whether all ranks wrap these layers now, which matters if FSDP makes groups of ranks for them."""
        if self._only_checks or not any(self._plan[layer][1] in RESHARD_SIZES for layer in layers):
            return True
        if self._refusal != _UNORDERED:
            positions = list(self._plan)
            if self._vote(",".join(str(positions.index(layer)) for layer in layers)):
                return True
            self._refusal = _UNORDERED
        return False

    def _is_early(self, module: nn.Module) -> bool:
        """Return whether a constructor wraps a layer before there is a plan for its model."""
        return not self._plan and self._refusal != _DISAGREE and self._in_constructor.is_early(module)

    def _early_strategy(self, module: nn.Module, call: inspect.BoundArguments, kind: WrapperKind) -> str:
        """Return the strategy of a layer that a constructor wraps; empty where none is set, or it can be set later."""
        from torchx_cubicml.recorder.apply.layer_plan import plan_digest

        if kind.can_change_wrapped:
            self._refusal = "the script wraps layers in a constructor, and not the model around them"
            return ""
        strategy = self._in_constructor.strategy_of_next(module)
        illegal = self._illegal_reason(call, kind, [strategy]) if strategy else ""
        if not strategy or illegal or not self._vote(plan_digest([module], [strategy])):
            self._refusal = illegal or (_DISAGREE if strategy else self._refusal)
            return ""
        self._in_constructor.add(module)
        return strategy

    def _plan_for_model(self, module: nn.Module, call: inspect.BoundArguments, kind: WrapperKind) -> None:
        """Make the plan for the whole model that a module belongs to, if all ranks can apply it."""
        from torchx_cubicml.recorder.apply.layer_plan import per_layer, plan_digest, whole_model

        if self._plan or self._refusal == _DISAGREE or self._is_skipped(module):
            return
        root = whole_model(module)
        layers, requested, mismatch = per_layer(root, self._strategies, when=_WHEN)
        self._refusal = (
            mismatch
            or self._illegal_reason(call, kind, requested)
            or self._in_constructor.mismatch(layers)
            or _unsettable(kind, layers, requested)
        )
        if not self._agree("" if self._refusal else plan_digest(layers, requested), _DISAGREE):
            self._skipped_models.append(root)
            return
        self._plan = {id(layer): (layer, str(strategy)) for layer, strategy in zip(layers, requested, strict=True)}
        self._illegal = [
            str(value) for family in self.values for value in family if self._illegal_reason(call, kind, [value])
        ]
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
        from torchx_cubicml.recorder.apply.layer_plan import per_layer

        model = self._in_constructor.model()
        if model is None or self._plan or self._refusal == _DISAGREE or self._is_skipped(model):
            return
        layers, _, mismatch = per_layer(model, self._strategies, when=_WHEN)
        self._refusal = mismatch or self._in_constructor.mismatch(layers)
        n_left = len(layers) - self._in_constructor.count
        if not self._refusal and n_left:
            self._refusal = f"{n_left} of the repeated layers were not wrapped in FSDP"

    def _illegal_reason(self, call: inspect.BoundArguments, kind: WrapperKind, requested: Sequence[Value]) -> str:
        """Return in words which value a call cannot be made with; empty without one."""
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


def modules_of(wrapped: object) -> list[nn.Module]:
    """Return the modules that one call of FSDP wraps, which FSDP2 takes as a list, too."""
    return list(wrapped) if isinstance(wrapped, list | tuple) else [wrapped]  # type: ignore[list-item] # as FSDP takes


def _is_hybrid(given: Mapping[str, object]) -> bool:
    mesh = given.get("device_mesh") or given.get("mesh")
    return getattr(mesh, "ndim", 1) > 1


def _check_size(strategy: str, given: Mapping[str, object]) -> int:
    """Return the size of the groups of a strategy; raise ``ValueError`` unless it divides the ranks of a copy."""
    from torch import distributed

    size, n_ranks = RESHARD_SIZES[strategy], getattr(given.get("mesh"), "size", distributed.get_world_size)()
    if _is_hybrid(given) or n_ranks % size or size >= n_ranks:
        raise ValueError(f"{strategy} is illegal here: {size} ranks must be a part of the {n_ranks} of one copy")
    return size


def _check_family(strategy: str, *, hybrid: bool) -> None:
    legal = _HYBRID if hybrid else _PLAIN
    if strategy not in legal:
        kind = "within replicated groups" if hybrid else "over all ranks"
        raise ValueError(f"the script shards {kind}, where {strategy} is illegal; choose from {', '.join(legal)}")
