"""Changes of a recommender's command that are usual levers of its speed and memory, as rows of changed facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.levers import Lever
from torchx_cubicml.records.standard_names import LEFT_TO_PLANNER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Value

_FACTOR = 2
_SHARDINGS = ("table_wise", "row_wise", "column_wise", "data_parallel")


def recommender_levers(row: Mapping[str, Value]) -> list[Lever]:
    """Return the usual levers that the formulas cover for a recommender with the facts ``row``.

    >>> row = {"micro_batch_size": 64, "world_size": 1, "embedding_rows": (10, 20)}
    >>> [dict(lever.values) for lever in recommender_levers(row)]
    [{'micro_batch_size': 128}, {'micro_batch_size': 32}, {'world_size': 2}]
    """
    levers = []
    micro, world, nodes = (row.get(name) for name in ("micro_batch_size", "world_size", "nnodes"))
    if isinstance(micro, int) and micro > 0:
        note = "the batch of a step changes"
        sizes = (micro * _FACTOR, *((micro // _FACTOR,) if micro % _FACTOR == 0 else ()))
        levers += [Lever(values={"micro_batch_size": size}, note=note) for size in sizes]
    if isinstance(world, int) and world > 1:
        levers += _of_sharding(row)
    if isinstance(world, int) and world > 0:
        wider: dict[str, Value] = {"world_size": world * _FACTOR}
        if isinstance(nodes, int):
            wider["nnodes"] = nodes * _FACTOR
        levers.append(Lever(values=wider, note="twice the devices and twice the batch of a step"))
    return levers


def _of_sharding(row: Mapping[str, Value]) -> list[Lever]:
    """Return one sharding for all tables; only where TorchRec shards them."""
    now, rows = row.get("embedding_sharding"), row.get("embedding_rows")
    if not isinstance(rows, tuple) or not isinstance(now, tuple) or LEFT_TO_PLANNER not in now:
        return []
    found = (((word,) * len(rows)) for word in _SHARDINGS)
    return [Lever(values={"embedding_sharding": words}) for words in found if words != now]
