"""Embedding tables of a TorchRec model that is not sharded yet, and the ways to shard them that its sharders offer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """An embedding table as the planner sees it.

    Args:
        name: TorchRec's name of the table.
        rows: number of embeddings.
        width: length of one embedding.
        kernels: sharding type -> kernels that the sharder of the table offers for it; empty without a sharder.
    """

    name: str
    rows: int
    width: int
    kernels: Mapping[str, tuple[str, ...]]

    def obstacle(self, sharding: str, kernel: str, device: str) -> str:
        """Return the reason why the table cannot be sharded as requested, in words; empty if it can.

        Args:
            sharding: TorchRec's name of a sharding type; empty for any.
            kernel: TorchRec's name of a kernel; empty for any.
            device: TorchRec's name of the kind of device.
        """
        if not sharding and not kernel:
            return ""
        if not self.kernels:
            return f"no sharder of the program shards the table {self.name}"
        if sharding and sharding not in self.kernels:
            return f"the sharder of the table {self.name} does not offer {sharding} on {device}"
        offered = [kernels for kind, kernels in self.kernels.items() if sharding in {"", kind}]
        if kernel and not any(kernel in kernels for kernels in offered):
            way = f" with {sharding}" if sharding else ""
            return f"the sharder of the table {self.name} does not offer the kernel {kernel}{way} on {device}"
        return ""


def planned_tables(model: nn.Module, sharders: Sequence[Any], device: str) -> list[PlannedTable]:
    """Return the tables of a model, module after module as ``named_modules`` lists them, and as each lists its own.

    Args:
        model: model that a planner of TorchRec plans.
        sharders: TorchRec's ``ModuleSharder`` objects.
        device: TorchRec's name of the kind of device, such as ``cpu``.
    """
    kernels = _offered(model, sharders, device)
    return [
        PlannedTable(
            name=config.name,
            rows=config.num_embeddings,
            width=config.embedding_dim,
            kernels=next((found for each in module.modules() if (found := kernels.get((id(each), config.name)))), {}),
        )
        for module in _collections(model)
        for config in _configs(module)
    ]


def _collections(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that hold embedding tables."""
    modules = sys.modules.get("torchrec.modules.embedding_modules")
    names = ("EmbeddingBagCollectionInterface", "EmbeddingCollectionInterface")
    kinds = tuple(kind for name in names if isinstance(kind := getattr(modules, name, None), type))
    inner: set[int] = set()
    for module in model.modules():
        if isinstance(module, kinds) and id(module) not in inner:
            inner |= {id(each) for each in module.modules()}
            yield module


def _configs(module: nn.Module) -> Sequence[Any]:
    for name in ("embedding_bag_configs", "embedding_configs"):
        configs = getattr(module, name, None)
        if callable(configs):
            return list(configs())
    return ()


def _offered(
    model: nn.Module, sharders: Sequence[Any], device: str
) -> dict[tuple[int, str], Mapping[str, tuple[str, ...]]]:
    """Return the kernels by sharding type of each table that a sharder shards, by module and name.

    As in TorchRec's enumerator, the sharder of the outermost module counts.
    """
    sharder_of = {sharder.module_type: sharder for sharder in sharders}
    found: dict[tuple[int, str], Mapping[str, tuple[str, ...]]] = {}
    pending = [model]
    while pending:
        module = pending.pop()
        sharder = sharder_of.get(type(module))
        if sharder is None:
            pending += module.children()
            continue
        kernels = {kind: tuple(sharder.compute_kernels(kind, device)) for kind in sharder.sharding_types(device)}
        for name in sharder.shardable_parameters(module):
            found.update({(id(inner), name): kernels for inner in module.modules()})
    return found
