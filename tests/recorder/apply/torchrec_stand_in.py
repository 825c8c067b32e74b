"""A stand-in for the parts of TorchRec that the hooks meet: collections of tables, sharders, and a planner."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

KERNELS = {"table_wise": ["fused"], "row_wise": ["fused", "fused_uvm"], "data_parallel": ["dense"]}


@dataclass
class ParameterConstraints:
    sharding_types: list[str] | None = None
    compute_kernels: list[str] | None = None
    min_partition: int | None = None


class EmbeddingBagCollectionInterface(nn.Module):
    pass


class EmbeddingCollectionInterface(nn.Module):
    pass


def config(name: str, rows: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, num_embeddings=rows, embedding_dim=4)


class Bags(EmbeddingBagCollectionInterface):
    def __init__(self, **rows: int) -> None:
        super().__init__()
        self.rows = rows

    def embedding_bag_configs(self) -> list[SimpleNamespace]:
        return [config(*table) for table in self.rows.items()]


class Sequences(EmbeddingCollectionInterface):
    def __init__(self, **rows: int) -> None:
        super().__init__()
        self.rows = rows

    def embedding_configs(self) -> tuple[SimpleNamespace, ...]:
        return tuple(config(*table) for table in self.rows.items())


class Around(EmbeddingBagCollectionInterface):
    """A collection that holds another and lists its tables, as TorchRec's with feature processors does."""

    def __init__(self, inner: Bags) -> None:
        super().__init__()
        self.inner = inner

    def embedding_bag_configs(self) -> list[SimpleNamespace]:
        return self.inner.embedding_bag_configs()


class Sharder:
    def __init__(self, module_type: type = Bags, kernels: Mapping[str, list[str]] = KERNELS) -> None:
        self.module_type = module_type
        self.kernels = kernels

    def sharding_types(self, device: str) -> list[str]:
        return [kind for kind in self.kernels if device != "cpu" or kind != "grid_shard"]

    def compute_kernels(self, kind: str, device: str) -> list[str]:
        return [kernel for kernel in self.kernels[kind] if device != "cpu" or kernel != "fused_uvm"]

    def shardable_parameters(self, module: Any) -> dict[str, object]:
        return dict(module.rows) if hasattr(module, "rows") else dict(module.inner.rows)


class Reservation:
    def __init__(self, share: float = 0.15) -> None:
        self._percentage = share


class EmbeddingShardingPlanner:
    """Planner that takes the constrained type and kernel, or ``table_wise``; 'big' never fits ``data_parallel``."""

    def __init__(self, constraints: dict[str, ParameterConstraints] | None = None) -> None:
        self._constraints = constraints
        self._enumerator = SimpleNamespace(_constraints=constraints, _last_stored_module="seen")
        self._storage_reservation: Any = Reservation()
        self._topology = SimpleNamespace(compute_device="cpu")
        self.planned: list[dict[str, Any]] = []
        self.shares: list[float] = []

    def collective_plan(self, module: nn.Module, sharders: list[Sharder] | None = None) -> SimpleNamespace:
        return self.plan(module, sharders or get_default_sharders())

    def plan(self, module: nn.Module, sharders: list[Sharder]) -> SimpleNamespace:
        assert self._enumerator._constraints == self._constraints
        self.planned.append(dict(self._constraints or {}))
        self.shares.append(getattr(self._storage_reservation, "_percentage", -1.0))
        plan: dict[str, Any] = {}
        for path, part in module.named_modules():
            if type(part) is sharders[0].module_type:
                plan[path] = {name: self._placed(name) for name in part.rows}
        return SimpleNamespace(plan=plan)

    def _placed(self, name: str) -> SimpleNamespace:
        own = (self._constraints or {}).get(name) or ParameterConstraints()
        kind = (own.sharding_types or ["table_wise"])[0]
        if name == "big" and kind == "data_parallel":
            raise RuntimeError("Unable to find a plan for this model because of insufficient storage. \n  1) Increase")
        kernel = (own.compute_kernels or KERNELS[kind])[0]
        return SimpleNamespace(sharding_type=kind, compute_kernel=kernel)


def get_default_sharders() -> list[Sharder]:
    return [Sharder()]


class Ranks:
    """The other ranks, which answer as they are told."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    def agree(self, name: str, word: str, *, within_s: float) -> bool:
        assert within_s == 30.0
        self.asked.append((name, word))
        return self.answers.pop(0) if self.answers else bool(word)


def stand_ins() -> dict[str, ModuleType]:
    """Return TorchRec's modules by name, each with a fresh planner class."""
    modules = {
        name: ModuleType(name)
        for name in (
            "torchrec.distributed.planner.planners",
            "torchrec.distributed.planner.types",
            "torchrec.modules.embedding_modules",
        )
    }
    planners, types, collections = modules.values()
    members = {
        name: vars(EmbeddingShardingPlanner)[name] for name in ("__init__", "collective_plan", "plan", "_placed")
    }
    planners.EmbeddingShardingPlanner = type("EmbeddingShardingPlanner", (), members)
    planners.get_default_sharders = get_default_sharders
    types.ParameterConstraints = ParameterConstraints
    collections.EmbeddingBagCollectionInterface = EmbeddingBagCollectionInterface
    collections.EmbeddingCollectionInterface = EmbeddingCollectionInterface
    return modules
