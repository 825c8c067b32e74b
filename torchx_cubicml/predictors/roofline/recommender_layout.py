"""Inputs of the formulas of recommenders: dense layers, embedding tables with their shards, batch and hardware.

The sizes are those of deep learning recommendation models (DLRM; Naumov et al., arXiv 1906.00091): a dense part that
all ranks train on samples of their own, and embedding tables that TorchRec shards.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.roofline.embedding_load import (
    QUANTITIES,
    SHARDINGS,
    EmbeddingLoad,
    Tables,
    default_column_shards,
)
from torchx_cubicml.predictors.roofline.recommender_constants import RECOMMENDER_DEFAULTS
from torchx_cubicml.predictors.roofline.recommender_facts import RecommenderFacts
from torchx_cubicml.records.standard_names import LEFT_TO_PLANNER, RESHARD_SIZES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.device_specs import Hardware
    from torchx_cubicml.records.values import Value

EACH_TIME = ("FULL_SHARD", "HYBRID_SHARD", *RESHARD_SIZES)  # gathered for forward and again for backward
ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")

# Bandwidth of the device's memory over that of the memory that holds a table: from the bandwidths that TorchRec's
# planner assumes (``planner/constants.py``, ``kernel_bw_lookup``).
_SLOWNESS = {"fused_uvm": 280.0, "quant_uvm": 280.0, "fused_uvm_caching": 44.0, "quant_uvm_caching": 44.0}
_STORED_SLOWNESS = 9000.0  # on an SSD
_LONGEST_RANKS = 20  # characters of a run of ranks
_MOST_RANKS, _MOST_PER_NODE = 1 << 17, 1 << 10  # larger numbers are no job's, and would take memory here


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderLayout:
    """``n`` trainings of recommenders, float64 ``[n]`` unless stated.

    Args:
        covered: whether the facts suffice, bool.
        has_tables: whether there are embedding tables, bool.
        samples: of one rank and step.
        ranks: devices of the job.
        per_node: ranks of one node, at most ``ranks``.
        nodes: at least 1.
        sizes: parameters of each dense layer, ``[n, n_layers]``; 0 beyond the last.
        sharded: whether a dense layer's states are sharded, bool ``[n, n_layers]``.
        each_time: whether they are gathered for forward and again for backward, likewise.
        tables: the embedding tables.
        load: of the ranks by their shards.
        replicated: bytes of the tables that each rank holds whole and trains with dense gradients.
        exchanges: kinds of sharding that exchange embeddings, each with collectives of its own.
        is_pipelined: 1.0 where indices are exchanged during the step before.
        reserved_share: of the memory, what TorchRec's planner keeps for the dense part; 1.0 where unknown.
        memory: bytes of one device.
        memory_bandwidth: of one device, bytes per second.
        link: to a device of the same node, bytes per second.
        network: to a device of another node, bytes per second.
        peak: of one device, FLOP/s.
    """

    covered: NDArray[np.bool_]
    has_tables: NDArray[np.bool_]
    samples: NDArray[np.float64]
    ranks: NDArray[np.float64]
    per_node: NDArray[np.float64]
    nodes: NDArray[np.float64]
    sizes: NDArray[np.float64]
    sharded: NDArray[np.bool_]
    each_time: NDArray[np.bool_]
    tables: Tables
    load: EmbeddingLoad
    replicated: NDArray[np.float64]
    exchanges: NDArray[np.float64]
    is_pipelined: NDArray[np.float64]
    reserved_share: NDArray[np.float64]
    memory: NDArray[np.float64]
    memory_bandwidth: NDArray[np.float64]
    link: NDArray[np.float64]
    network: NDArray[np.float64]
    peak: NDArray[np.float64]

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return the layouts of ``rows`` of facts."""
        return cls.of(RecommenderFacts.from_rows(rows))

    @classmethod
    def of(cls, facts: RecommenderFacts) -> Self:
        """Return the layouts of ``facts``; those that are not covered are meaningless."""
        numbers = facts.numbers
        of_nodes = numbers["nnodes"] * numbers["nproc_per_node"]
        ranks = np.where(np.isnan(numbers["world_size"]), of_nodes, numbers["world_size"])
        samples, pipeline = numbers["micro_batch_size"], facts.words["train_pipeline"]
        known = (samples > 0.0) & (ranks >= 1.0) & (ranks <= _MOST_RANKS)
        samples, ranks = np.where(known, samples, 1.0), np.where(known, ranks, 1.0)
        hardware = _hardware(facts.hardware)
        per_node = np.where(numbers["nproc_per_node"] >= 1.0, numbers["nproc_per_node"], hardware["per_node"])
        per_node = np.minimum(np.minimum(per_node, _MOST_PER_NODE), ranks)
        sizes, sharded, each_time, has_dense = _dense_layers(facts)
        tables, is_sharded = _tables(facts, samples=samples, ranks=ranks, per_node=per_node)
        seconds = _rough_seconds(hardware, is_one_node=ranks <= per_node)
        return cls(
            covered=known & (has_dense | is_sharded),
            has_tables=is_sharded,
            samples=samples,
            ranks=ranks,
            per_node=per_node,
            nodes=np.maximum(ranks / per_node, 1.0),
            sizes=sizes,
            sharded=sharded,
            each_time=each_time,
            tables=tables,
            load=EmbeddingLoad.of(tables, seconds),
            replicated=(tables.bytes * tables.has("data_parallel")).sum(axis=1),
            exchanges=_exchanges(tables),
            is_pipelined=pipeline.numbers(_exchanges_ahead, width=1)[:, 0],
            reserved_share=np.where(numbers["reserved_share"] > 0.0, numbers["reserved_share"], 1.0),
            **{name: hardware[name] for name in ("memory", "memory_bandwidth", "link", "network", "peak")},
        )

    def at(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Return the layouts at the indices or the mask ``rows``."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen = {name: array[rows] for name, array in arrays.items() if name not in ("tables", "load")}
        return type(self)(**chosen, tables=self.tables.at(rows), load=self.load.at(rows))

    def __len__(self) -> int:
        return len(self.ranks)


def has_tables(row: Mapping[str, Value]) -> bool:
    """Return whether a row tells of embedding tables, one by one or all as one kind."""
    return "embedding_rows" in row or "n_embedding_tables" in row


def _exchanges_ahead(pipeline: str) -> float:
    """Return 1.0 for TorchRec's ``TrainPipelineSparseDist`` and the pipelines derived from it, else 0.0."""
    return float(any(name in pipeline.lower() for name in ("sparsedist", "semisync")))


def tables_of_unknown_plan(row: Mapping[str, Value]) -> int:
    """Return the number of tables that a row leaves to TorchRec's planner, whose choice for them is not known.

    >>> tables_of_unknown_plan({"embedding_sharding": ("planner", "planner"), "embedding_plan": ("row_wise", "")})
    1
    """
    value, plan, rows = (row.get(name) for name in ("embedding_sharding", "embedding_plan", "embedding_rows"))
    asked = value if isinstance(value, tuple) else (value,) * (len(rows) if isinstance(rows, tuple) else 0)
    known = plan if isinstance(plan, tuple) and len(plan) == len(asked) else ("",) * len(asked)
    return sum(word == LEFT_TO_PLANNER and not chosen for word, chosen in zip(asked, known, strict=True))


def _hardware(devices: Sequence[Hardware]) -> dict[str, NDArray[np.float64]]:
    names = ("memory", "memory_bandwidth", "link", "network", "per_node")
    found = {name: np.array([getattr(device, name) for device in devices], dtype=np.float64) for name in names}
    return {**found, "peak": np.array([device.peak("bf16") for device in devices], dtype=np.float64)}


def _dense_layers(
    facts: RecommenderFacts,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return sizes and sharding of the dense layers, and the mask of the rows that tell both."""
    sizes, strategies = facts.lists["layer_n_params"], facts.words["sharding_strategy"]
    exists, width = np.isfinite(sizes), sizes.shape[1]
    is_told = exists.any(axis=1) & (~exists | (strategies.wide(width) > 0)).all(axis=1)
    each_time = exists & (strategies.numbers(lambda word: float(word in EACH_TIME), width=width) > 0.0)
    once = exists & (strategies.numbers(lambda word: float(word in ONCE), width=width) > 0.0)
    return np.where(exists, sizes, 0.0), each_time | once, each_time, np.asarray(is_told)


def _tables(
    facts: RecommenderFacts, *, samples: NDArray[np.float64], ranks: NDArray[np.float64], per_node: NDArray[np.float64]
) -> tuple[Tables, NDArray[np.bool_]]:
    """Return the tables, one by one where their rows and widths are told, else all as one kind; and whether any is."""
    numbers, rows, n_tables = facts.numbers, facts.lists["embedding_rows"], facts.lists["embedding_rows"].shape[1]
    width = _wide(facts.lists["embedding_dims"], n_tables)
    is_each = (np.isfinite(rows) == np.isfinite(width)).all(axis=1) & np.isfinite(rows).any(axis=1)
    is_alike = ~is_each & (numbers["n_embedding_tables"] > 0.0) & (numbers["embedding_dim"] > 0.0)
    exists = np.isfinite(rows) & is_each[:, None]
    exists[:, 0] |= is_alike
    count = np.where(is_alike, numbers["n_embedding_tables"], 1.0)

    def of_each(values: NDArray[np.float64], alike: NDArray[np.float64], default: float) -> NDArray[np.float64]:
        table = np.where(is_alike[:, None], alike[:, None], values)
        return np.where(exists, np.where(np.isfinite(table), table, default), 0.0)

    def of_words(name: str, meaning: Callable[[str], float]) -> NDArray[np.float64]:
        return facts.words[name].numbers(meaning, width=n_tables)

    width = of_each(width, numbers["embedding_dim"], 0.0)
    pooling = facts.lists["embedding_pooling"]
    poolings = np.broadcast_to(pooling, rows.shape) if pooling.shape[1] == 1 else _wide(pooling, n_tables)
    n_shards = of_words("embedding_ranks", _n_shards)
    sharding, plan = of_words("embedding_sharding", _sharding), of_words("embedding_plan", _sharding)
    tables = Tables(
        rows=np.maximum(of_each(rows, numbers["n_embedding_rows"] / count, 0.0), np.where(exists, 1.0, 0.0)),
        width=width,
        pooling=of_each(poolings, pooling[:, 0], 1.0),
        slowness=of_words("embedding_kernel", _slowness),
        count=np.where(exists, count[:, None], 0.0),
        is_sequence=of_words("embedding_pooling_types", lambda word: float(word == "none")),
        sharding=np.where(is_alike[:, None], 0.0, np.where(sharding > 0.0, sharding, plan)).astype(np.intp),
        column_shards=np.where(n_shards > 1.0, n_shards, default_column_shards(width)),
        owner=of_words("embedding_ranks", lambda word: float(word) if word.isdecimal() else np.nan),
        samples=samples,
        ranks=ranks,
        per_node=per_node,
    )  # fmt: skip
    return tables, is_each | is_alike


def _sharding(word: str) -> float:
    return float(SHARDINGS.index(word.lower())) if word.lower() in SHARDINGS else 0.0


def _slowness(kernel: str) -> float:
    return _STORED_SLOWNESS if kernel.startswith(("key_value", "ssd")) else _SLOWNESS.get(kernel, 1.0)


def _n_shards(ranks: str) -> float:
    """Return the number of shards in a text of the ranks that hold them, 0 where it is none.

    >>> [_n_shards(text) for text in ("0", "0+3", "0-7", "", "0-999999999")]
    [1.0, 2.0, 8.0, 0.0, 0.0]
    """
    count = 0.0
    for part in ranks.split("+"):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or len(part) > _LONGEST_RANKS:
            return 0.0
        count += int(last or first) - int(first) + 1
    return count if 0.0 < count <= _MOST_PER_NODE else 0.0


def _exchanges(tables: Tables) -> NDArray[np.float64]:
    """Return the number of kinds of sharding that exchange embeddings, pooled and not, float64 ``[n]``."""
    count = np.zeros(len(tables.ranks))
    for word in SHARDINGS:
        if word != "data_parallel":
            for is_sequence in (0.0, 1.0):
                count += (tables.has(word) & (tables.is_sequence == is_sequence)).any(axis=1)
    return count


def _rough_seconds(
    hardware: Mapping[str, NDArray[np.float64]], *, is_one_node: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the seconds of each of ``QUANTITIES`` by the default constants, float64 ``[n, n_quantities]``."""
    defaults = RECOMMENDER_DEFAULTS
    memory = hardware["memory_bandwidth"] * defaults["memory_bandwidth"]
    in_node = hardware["link"] * defaults["link_dp"]
    wire = np.where(is_one_node, in_node, np.minimum(hardware["network"] * defaults["network_dp"], in_node))
    zero = np.zeros_like(memory)
    found = {
        "rows": 3.0 * defaults["row_bytes"] / memory,
        "row_bytes": 3.0 / memory,
        "pooled_bytes": 3.0 / memory,
        "sent": 2.0 / (wire * defaults["all_to_all"]),
        "scattered": 2.0 / (wire * defaults["reduce_scatter"]),
        "scattered_in_node": 2.0 / (in_node * defaults["reduce_scatter"]),
        "received": 1.0 / (wire * defaults["all_to_all"]),
        "sorted": defaults["bucket_bytes"] / memory,
        "shards": zero + defaults["table_s"],
        "held": zero,
    }
    return np.stack([found[name] for name in QUANTITIES], axis=1)


def _wide(table: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return a table with ``width`` columns, filled up with NaN."""
    return np.pad(table, ((0, 0), (0, max(width - table.shape[1], 0))), constant_values=np.nan)[:, :width]
