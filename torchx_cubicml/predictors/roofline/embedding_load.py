"""Load of each rank by the shards of embedding tables: lookups, exchanged bytes, and the imbalance between ranks.

The work of a shard is that of TorchRec's planner (``shard_estimators.py``): the samples that it serves, the rows that
it looks up and the numbers that it sends. Where a plan is not known, shards are placed as the planner does by default:
the most expensive first, each on the rank with the least load (``GreedyPerfPartitioner``; longest-processing-time rule,
Graham 1969). All ranks wait for the fullest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.records.standard_names import EMBEDDING_SHARDINGS, LEFT_TO_PLANNER

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARDINGS = (LEFT_TO_PLANNER, *EMBEDDING_SHARDINGS)
"""TorchRec's words; ``planner``, or none, leaves a table to its planner: its work is spread evenly over the ranks."""

QUANTITIES = (
    "rows",
    "row_bytes",
    "pooled_bytes",
    "sent",
    "scattered",
    "scattered_in_node",
    "received",
    "sorted",
    "shards",
    "held",
)
"""Work of one rank in a step's forward pass.

``rows`` looked up and their bytes; bytes of the pooled embeddings that it writes; bytes that it sends in an all-to-all,
in a reduce-scatter over all ranks and in one within its node; bytes of indices that it receives; indices that are
sorted by the rank of their row; ``shards``, and the bytes of tables that it holds.
"""

_NUMBER, _INDEX = 4.0, 8.0  # bytes of a number of an embedding, and of an index or a length
_LEAST_COLUMNS = 128  # narrowest column shard by default: TorchRec's MIN_CW_DIM
_MOST_OWNERS = 1 << 10  # ranks beyond which it does not matter which one is known to hold a table
_MOST_COLUMNS = 1 << 16  # widest table that is cut
_MOST_CELLS = 1 << 22  # rows times ranks that are placed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Embedding tables of ``n`` trainings, float64 ``[n, n_tables]`` unless stated; rows of 0 where there is no table.

    Args:
        rows: of a table.
        width: numbers of one embedding.
        pooling: rows that one sample looks up, on average.
        slowness: of the memory that holds the table, over that of the device.
        count: tables that are alike and stand in one column.
        is_sequence: 1.0 where rows are not pooled.
        sharding: index in ``SHARDINGS``, int ``[n, n_tables]``.
        column_shards: shards of a table that is cut by columns, >= 1.
        owner: rank of a table that one rank holds; NaN where unknown.
        samples: of one rank and step, ``[n]``.
        ranks: ``[n]``.
        per_node: ranks of one node, at most ``ranks``, ``[n]``.
    """

    rows: NDArray[np.float64]
    width: NDArray[np.float64]
    pooling: NDArray[np.float64]
    slowness: NDArray[np.float64]
    count: NDArray[np.float64]
    is_sequence: NDArray[np.float64]
    sharding: NDArray[np.intp]
    column_shards: NDArray[np.float64]
    owner: NDArray[np.float64]
    samples: NDArray[np.float64]
    ranks: NDArray[np.float64]
    per_node: NDArray[np.float64]

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Self:
        """Return the tables of some trainings."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def has(self, *words: str) -> NDArray[np.bool_]:
        """Return whether each table has one of the shardings ``words``, bool ``[n, n_tables]``."""
        return np.array([word in words for word in SHARDINGS])[self.sharding] & (self.rows > 0.0)

    @property
    def bytes(self) -> NDArray[np.float64]:
        """Bytes of the weights of each table, ``[n, n_tables]``."""
        return self.rows * self.width * self.count * _NUMBER


def default_column_shards(width: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the column shards that TorchRec cuts of tables without a constraint; 1 where nothing divides the width.

    >>> default_column_shards(np.array([64.0, 128.0, 256.0, 768.0, 130.0])).tolist()
    [1.0, 1.0, 2.0, 6.0, 1.0]
    """

    def shards(columns: int) -> float:
        blocks = (each for each in range(_LEAST_COLUMNS, columns) if columns % each == 0 and each % 4 == 0)
        return columns / next(blocks, max(columns, 1)) if columns <= _MOST_COLUMNS else 1.0

    distinct, inverse = np.unique(width, return_inverse=True)
    found = np.array([max(shards(int(each)), 1.0) if np.isfinite(each) else 1.0 for each in distinct])
    return np.asarray(found[inverse].reshape(width.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLoad:
    """Load of the ranks of ``n`` trainings.

    Args:
        mean: over the ranks, float64 ``[n, n_quantities]``, in the order of ``QUANTITIES``.
        fullest: of a few ranks, the one that has most of something first, ``[n, n_candidates, n_quantities]``: one of
            them is the rank that the others wait for.
    """

    mean: NDArray[np.float64]
    fullest: NDArray[np.float64]

    @classmethod
    def of(cls, tables: Tables, seconds: NDArray[np.float64]) -> Self:
        """Return the load by the shards of ``tables``.

        Args:
            tables: of ``n`` trainings.
            seconds: that each unit of ``QUANTITIES`` takes, about, by which shards are placed, ``[n, n_quantities]``.
        """
        even = evenly_spread(tables)
        shape = len(even), len(QUANTITIES)
        mean, fullest = np.zeros(shape), np.zeros((shape[0], _CANDIDATES, shape[1]))
        layouts = np.column_stack([tables.ranks, tables.per_node])
        for ranks, per_node in np.unique(layouts, axis=0).tolist():
            of_layout = np.flatnonzero((layouts == (ranks, per_node)).all(axis=1))
            busy = busy_ranks(tables.at(of_layout), ranks=int(ranks))
            step = max(_MOST_CELLS // busy, 1)
            for start in range(0, len(of_layout), step):
                rows = of_layout[start : start + step]
                loads = placed(tables.at(rows), seconds[rows], ranks=busy)
                mean[rows] = even[rows] + loads.sum(axis=1) / ranks
                fullest[rows] = _fullest(even[rows, None, :] + loads, seconds[rows])
        return cls(mean=mean, fullest=fullest)

    def at(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Return the load of some trainings."""
        return type(self)(mean=self.mean[rows], fullest=self.fullest[rows])


_MOST_OF = ("rows", "row_bytes", "sent", "received", "held")
_CANDIDATES = 1 + len(_MOST_OF)


def _fullest(loads: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks with most seconds, rows, bytes of rows, bytes sent, received and held, in this order."""
    total = np.einsum("nrq,nq->nr", loads, seconds)
    most = [total, *(loads[:, :, QUANTITIES.index(name)] for name in _MOST_OF)]
    chosen = np.stack([each.argmax(axis=1) for each in most], axis=1)
    return np.take_along_axis(loads, chosen[:, :, None], axis=1)


def evenly_spread(tables: Tables) -> NDArray[np.float64]:
    """Return the work of each rank by tables that all ranks share alike, float64 ``[n, n_quantities]``.

    These are replicas, tables cut by rows over all ranks (or over the ranks of a single node), and tables that are left
    to the planner.
    """
    ranks, one_node = tables.ranks[:, None], (tables.ranks <= tables.per_node)[:, None]
    others, samples = ranks - 1.0, tables.samples[:, None] * tables.count
    by_rows = tables.has("row_wise") | (tables.has("table_row_wise", "grid_shard") & one_node)
    planned = tables.has("planner")
    shared = (by_rows | planned).astype(np.float64)
    each = shared + tables.has("data_parallel")
    # A shard by rows pools what it holds of each sample of all ranks; without pooling it sends the rows that it finds.
    partial = (by_rows & (tables.is_sequence <= 0.0)).astype(np.float64)
    lookups, pooled = samples * tables.pooling, _pooled_bytes(tables)
    lengths = np.where(by_rows, others, others / ranks)  # each rank that holds rows is told a length for each sample
    of_each = _table(
        rows=lookups * each,
        row_bytes=lookups * tables.width * tables.slowness * _NUMBER * each,
        pooled_bytes=pooled * each * np.where(partial > 0.0, ranks, 1.0),
        sent=pooled * others / ranks * (shared - partial),
        scattered=pooled * others * partial,
        received=_INDEX * (lookups * others / ranks + samples * lengths) * shared,
        sorted=lookups * (others > 0.0) * by_rows,
        shards=tables.count * each / np.where(planned, ranks, 1.0),
        held=tables.bytes * each / np.where(shared > 0.0, ranks, 1.0),
    )
    return np.asarray(of_each.sum(axis=1))


def busy_ranks(tables: Tables, *, ranks: int) -> int:
    """Return the number of ranks that may hold a shard of their own, at least 1: no more than there are shards.

    Args:
        tables: of trainings with as many ranks and ranks per node, at least one.
        ranks: of each training.
    """
    per_node = int(tables.per_node[0])
    copies, of_node = _copies(tables)
    shards, on_nodes = int(copies.sum(axis=1).max()), int((copies * of_node).sum(axis=1).max())
    owners = np.where(np.isfinite(tables.owner) & (tables.owner < ranks), tables.owner + 1.0, 0.0)
    if on_nodes:
        return min(ranks // per_node, shards) * per_node
    return min(ranks, max(shards, min(int(owners.max()), _MOST_OWNERS), 1))


def _copies(tables: Tables) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the shards of each table that are placed, 0 where none is, and whether a node shares it."""
    of_rank = tables.has("table_wise", "column_wise", "table_column_wise")
    of_node = tables.has("table_row_wise", "grid_shard") & (tables.ranks > tables.per_node)[:, None]
    shards = np.where(tables.has("table_wise", "table_row_wise"), 1.0, tables.column_shards)
    return shards * (of_rank | of_node), of_node


def placed(tables: Tables, seconds: NDArray[np.float64], *, ranks: int) -> NDArray[np.float64]:
    """Return the work of each rank by shards that one rank or one node holds, float64 ``[n, ranks, n_quantities]``.

    Args:
        tables: of ``n`` trainings with as many ranks and ranks per node.
        seconds: see ``EmbeddingLoad.of``.
        ranks: of each training, or those of them that hold any.
    """
    n, per_node = len(tables.ranks), int(tables.per_node[0])
    loads, busy = np.zeros((n, ranks, len(QUANTITIES))), np.zeros((n, ranks))
    copies, of_node = _copies(tables)
    if not copies.any():
        return loads
    work = _work_of_shard(tables, copies=np.maximum(copies, 1.0), of_node=of_node)
    cost = np.einsum("ntq,nq->nt", work, seconds)
    owner = np.where((copies == 1.0) & ~of_node & (tables.owner < ranks), tables.owner, np.nan)
    cost_first = np.where(
        np.isfinite(owner), np.inf, cost
    )  # what is known to lie somewhere is there before others come
    for column in np.argsort(-cost_first, axis=1, kind="stable").T:
        at = np.arange(n), column
        for copy in range(int(copies[at].max())):
            for size, mask in ((1, ~of_node[at]), (per_node, of_node[at])):
                rows = np.flatnonzero((copies[at] > copy) & mask)
                if not len(rows):
                    continue
                first = _least_busy(busy[rows], size)
                first = np.where(np.isfinite(owner[rows, column[rows]]), owner[rows, column[rows]], first).astype(int)
                members = first[:, None] + np.arange(size)
                loads[rows[:, None], members] += work[rows, column[rows]][:, None, :]
                busy[rows[:, None], members] += cost[rows, column[rows]][:, None]
    return loads


def _least_busy(busy: NDArray[np.float64], size: int) -> NDArray[np.intp]:
    """Return the first rank of the least busy group of ``size`` ranks, ``[n]``."""
    n_groups = busy.shape[1] // size
    groups = busy[:, : n_groups * size].reshape(len(busy), n_groups, size)
    return np.asarray(groups.sum(axis=2).argmin(axis=1) * size)


def _work_of_shard(tables: Tables, *, copies: NDArray[np.float64], of_node: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the work of a rank by one shard of each table, float64 ``[n, n_tables, n_quantities]``.

    Args:
        tables: of ``n`` trainings.
        copies: shards into which its columns are cut, ``[n, n_tables]``.
        of_node: whether the ranks of one node share its rows, ``[n, n_tables]``.
    """
    ranks, samples = tables.ranks[:, None], (tables.samples * tables.ranks)[:, None]
    sharers = np.where(of_node, tables.per_node[:, None], 1.0)
    lookups, pooled = samples * tables.pooling / sharers, _pooled_bytes(tables) * ranks / copies
    remote = (ranks - 1.0) / ranks
    return _table(
        rows=lookups,
        row_bytes=lookups * tables.width / copies * tables.slowness * _NUMBER,
        pooled_bytes=pooled,
        # Across nodes each rank of a node sends its part of what they have reduced.
        sent=np.where(of_node, pooled / sharers * (ranks - sharers) / ranks, pooled * remote),
        scattered_in_node=pooled * (sharers - 1.0) / sharers,
        received=_INDEX * (lookups + samples) * remote,
        sorted=lookups * of_node,
        shards=np.ones_like(lookups),
        held=tables.bytes / copies / sharers,
    )


def _pooled_bytes(tables: Tables) -> NDArray[np.float64]:
    """Return the bytes of the embeddings of one rank's samples, ``[n, n_tables]``."""
    embeddings = np.where(tables.is_sequence > 0.0, tables.pooling, 1.0)
    return np.asarray(tables.samples[:, None] * tables.count * embeddings * tables.width * _NUMBER)


def _table(**quantities: NDArray[np.float64]) -> NDArray[np.float64]:
    zero = np.zeros_like(quantities["rows"])
    return np.stack([quantities.get(name, zero) for name in QUANTITIES], axis=2)
