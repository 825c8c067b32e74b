"""Embedding tables of a recommender and their sharding plan, as recorded facts: one value per table.

Reference: D. Ivchenko et al., "TorchRec: a PyTorch domain library for recommendation systems", RecSys 2022.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.embedding_modules import embedding_modules, sharding_plan, table_configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from torch import nn

    from torchx_cubicml.records.values import Value

MAX_TABLES = 1000  # of more, only the number is recorded
_LEAST_RUN = 3  # neighbouring ranks that are written as a range


def embedding_facts(root: nn.Module) -> dict[str, Value]:
    """Return the facts of a model's tables, in the order of modules and then of their configs.

    Rows and dims are those of the whole tables. The sharding is left out unless it is known for every table.
    """
    tables = [(module, config) for module in embedding_modules(root) for config in table_configs(module)]
    if not tables:
        return {}
    pipeline = train_pipeline()
    facts: dict[str, Value] = {"n_embedding_tables": len(tables), **({"train_pipeline": pipeline} if pipeline else {})}
    if len(tables) > MAX_TABLES:
        return facts
    facts |= {
        "embedding_tables": tuple(str(config.name) for _, config in tables),
        "embedding_rows": tuple(int(config.num_embeddings) for _, config in tables),
        "embedding_dims": tuple(int(config.embedding_dim) for _, config in tables),
        "embedding_pooling_types": tuple(_pooling_type(config) for _, config in tables),
    }
    plans = [sharding_plan(module).get(config.name) for module, config in tables]
    columns = {
        "embedding_sharding": [str(getattr(plan, "sharding_type", "")) for plan in plans],
        "embedding_kernel": [str(getattr(plan, "compute_kernel", "")) for plan in plans],
        "embedding_ranks": [_ranks(module, plan) for (module, _), plan in zip(tables, plans, strict=True)],
    }
    return facts | {name: tuple(words) for name, words in columns.items() if all(words)}


def train_pipeline() -> str:
    """Return the class of TorchRec's pipeline that runs the current step, by the stack; empty without one.

    A class of the program's own counts as the class of TorchRec that it is derived from.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "progress":
            names = (each.__name__ for each in type(frame.f_locals.get("self")).__mro__ if _is_pipeline(each))
            found = next(names, "")
            if found:
                return found
        frame = frame.f_back
    return ""


def _is_pipeline(kind: type) -> bool:
    return kind.__module__.startswith("torchrec.distributed.train_pipeline") and "TrainPipeline" in kind.__name__


def _pooling_type(config: Any) -> str:
    """Return the pooling of a table, such as ``sum``; ``none`` if its rows are returned one by one."""
    return str(getattr(getattr(config, "pooling", None), "name", "none")).lower()


def _ranks(module: nn.Module, plan: object) -> str:
    """Return the ranks of a table's shards; empty if they are unknown."""
    ranks = getattr(plan, "ranks", None)
    if ranks is None and getattr(plan, "sharding_type", "") == "data_parallel":
        ranks = range(_world_size(vars(module)))
    return format_ranks(list(ranks or ()))


def _world_size(attributes: Mapping[str, object]) -> int:
    size = getattr(attributes.get("_env"), "world_size", 0)
    return size if isinstance(size, int) else 0


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as a short text, in order and with repetitions; three neighbours or more are a range.

    >>> format_ranks([0, 1]), format_ranks([0, 1, 2, 3]), format_ranks([5, 0, 0, 1, 2])
    ('0+1', '0-3', '5+0+0-2')
    """
    words: list[str] = []
    start = 0
    while start < len(ranks):
        end = start + 1
        while end < len(ranks) and ranks[end] == ranks[end - 1] + 1:
            end += 1
        run = ranks[start:end]
        words += [f"{run[0]}-{run[-1]}"] if len(run) >= _LEAST_RUN else map(str, run)
        start = end
    return "+".join(words)
