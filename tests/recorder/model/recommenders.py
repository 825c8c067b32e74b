"""Stand-ins for TorchRec's classes, known by their names and modules as TorchRec's own.

The real ones are trained by ``tests/integrations/test_torchrec_recorded.py``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Pooling(Enum):
    """Pooling of a table's rows."""

    SUM = "SUM"
    MEAN = "MEAN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Config of a table, with the names of TorchRec's attributes."""

    name: str
    num_embeddings: int = 10
    embedding_dim: int = 4
    feature_names: tuple[str, ...] = ("f",)
    pooling: Pooling = Pooling.SUM


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTable:
    """Config of a table whose rows are returned one by one."""

    name: str
    num_embeddings: int = 10
    embedding_dim: int = 4
    feature_names: tuple[str, ...] = ("f",)


class EmbeddingBagCollection(nn.Module):
    """Unsharded module: a whole weight per table."""

    def __init__(self, *tables: Table) -> None:
        super().__init__()
        self._embedding_bag_configs = list(tables)
        self.embedding_bags = nn.ModuleDict(
            {table.name: nn.EmbeddingBag(table.num_embeddings, table.embedding_dim) for table in tables}
        )

    def forward(self, features: object) -> object:
        return features


class ShardedEmbeddingBagCollection(nn.Module):
    """Sharded module: this rank holds ``local`` rows of each table."""

    def __init__(self, plan: dict[str, Any], *tables: Table, local: int = 1) -> None:
        super().__init__()
        self._embedding_bag_configs = list(tables)
        self._env = SimpleNamespace(world_size=4)
        self.module_sharding_plan = plan
        self.embedding_bags = nn.ModuleDict({table.name: nn.Module() for table in tables})
        for table in tables:
            if local:
                shard = nn.Parameter(torch.zeros(local, table.embedding_dim))
                self.embedding_bags[table.name].register_parameter("weight", shard)

    def forward(self, features: object) -> object:
        return features


class EmbeddingCollection(nn.Module):
    """Unsharded module of sequence tables."""

    def __init__(self, *tables: SequenceTable) -> None:
        super().__init__()
        self._embedding_configs = list(tables)
        self.embeddings = nn.ModuleDict(
            {table.name: nn.Embedding(table.num_embeddings, table.embedding_dim) for table in tables}
        )

    def forward(self, features: object) -> object:
        return features


class DistributedModelParallel(nn.Module):
    """Wrapper that lists the parameters of the model whatever is asked, as TorchRec's does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._dmp_wrapped_module = module

    def forward(self, *args: object) -> object:
        return self._dmp_wrapped_module(*args)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._dmp_wrapped_module.named_parameters(prefix)


class KeyedJaggedTensor:
    """Sparse features: ``lengths`` holds the values of each sample, one key after the other."""

    def __init__(self, keys: Sequence[str], lengths: Sequence[int], *, by_offsets: bool = False) -> None:
        self._keys, counts = list(keys), torch.tensor(lengths)
        self._lengths = None if by_offsets else counts
        self._offsets = torch.cat((torch.zeros(1), counts.cumsum(0))) if by_offsets else None
        self._counts = counts.view(len(keys), -1) if keys else counts.view(0, 0)
        self.is_variable = False

    def keys(self) -> list[str]:
        return self._keys

    def stride(self) -> int:
        return self._counts.shape[1]

    def length_per_key(self) -> list[int]:
        return [int(counts.sum()) for counts in self._counts]

    def variable_stride_per_key(self) -> bool:
        return self.is_variable


class Interaction(nn.Module):
    """Recommender with a dense part of 10 + 33 parameters."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.sparse = nn.ModuleList(modules)
        self.bottom = nn.Linear(4, 2)
        self.top = nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(1, 1, bias=False))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        for module in self.sparse:
            module(features)
        return self.bottom(torch.ones(features.stride(), 4))


KINDS = (
    EmbeddingBagCollection,
    ShardedEmbeddingBagCollection,
    EmbeddingCollection,
    DistributedModelParallel,
    KeyedJaggedTensor,
)


def sharded(kind: str, ranks: list[int] | None, kernel: str = "fused") -> SimpleNamespace:
    """Return TorchRec's sharding of one table."""
    return SimpleNamespace(sharding_type=kind, compute_kernel=kernel, ranks=ranks)


@pytest.fixture
def torchrec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the stand-ins the module names of TorchRec, which counts as imported."""
    monkeypatch.setitem(sys.modules, "torchrec", ModuleType("torchrec"))
    for kind in KINDS:
        monkeypatch.setattr(kind, "__module__", "torchrec.stand_in")
