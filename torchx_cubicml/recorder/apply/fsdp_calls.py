"""Calls of FSDP1's constructor and of FSDP2's ``fully_shard``: the arguments of a sharding strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook
from torchx_cubicml.records.standard_names import RESHARD_SIZES

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping

    from torch import nn

_PLAIN, _HYBRID = (tuple(str(each) for each in group if each not in RESHARD_SIZES) for group in FsdpHook.values)
_RESHARDS = frozenset({"FULL_SHARD", "HYBRID_SHARD"})


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
