"""Alternatives to the facts of a recommender that a command leaves open or only suggests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.standard_names import LEFT_TO_PLANNER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
    from torchx_cubicml.records.values import Value

_OF_PLANNER = {"table_wise": 0.5, "row_wise": 0.15, "column_wise": 0.1, "data_parallel": 0.1}
"""Sharding -> probability that the planner chooses it for all tables; else it mixes them, as if spread evenly."""
_OF_POOLING = {4.0: 0.15, 16.0: 0.1}
"""Rows that a sample looks up -> probability, where one row was assumed."""
_DENSE_SIZES = (30_000, 1_000_000, 30_000_000)
"""Parameters of a dense part that is unknown; each is as likely."""
_ASSUMED = 0.1  # probability that assumed dense layers are half as large, and as much that they are twice as large


def doubtful_tables(known: CommandFacts) -> Iterator[tuple[str, Value, float]]:
    """Yield facts of a recommender, each with another value that it may have and the probability of that.

    >>> from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
    >>> rows = {"embedding_rows": (10, 20), "embedding_sharding": ("planner", "planner")}
    >>> next(doubtful_tables(CommandFacts(facts=rows)))
    ('embedding_sharding', ('table_wise', 'table_wise'), 0.5)
    """
    rows = known.facts.get("embedding_rows")
    if isinstance(rows, tuple):
        yield from _of_tables(known, len(rows))
        yield from _of_dense_layers(known)


def _of_tables(known: CommandFacts, n_tables: int) -> Iterator[tuple[str, Value, float]]:
    placed = known.facts.get("embedding_sharding", (LEFT_TO_PLANNER,))
    if isinstance(placed, tuple) and LEFT_TO_PLANNER in placed and "embedding_plan" not in known.facts:
        for word, probability in _OF_PLANNER.items():
            yield "embedding_sharding", (word,) * n_tables, probability
    if "embedding_pooling" in known.assumed or "embedding_pooling" in known.unknown:
        for pooling, probability in _OF_POOLING.items():
            yield "embedding_pooling", (pooling,) * n_tables, probability


def _of_dense_layers(known: CommandFacts) -> Iterator[tuple[str, Value, float]]:
    layers = known.facts.get("layer_n_params")
    if not isinstance(layers, tuple):
        for size in _DENSE_SIZES:
            yield "layer_n_params", (size,), 1.0 / len(_DENSE_SIZES)
    elif "layer_n_params" in known.assumed:
        for factor in (0.5, 2.0):
            yield "layer_n_params", tuple(int(factor * float(size)) for size in layers), _ASSUMED
