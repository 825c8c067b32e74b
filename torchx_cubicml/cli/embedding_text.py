"""Embedding tables of a recorded recommender as text, one line per table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Value

PER_TABLE = (
    "embedding_tables",
    "embedding_rows",
    "embedding_dims",
    "embedding_pooling",
    "embedding_pooling_types",
    "embedding_sharding",
    "embedding_kernel",
    "embedding_ranks",
)
_MAX_LINES = 100


def table_lines(facts: Mapping[str, Value]) -> list[str]:
    """Return a line per table, such as ``ads: 1,000 x 64, sum of 2 rows, row_wise (fused) on ranks 0-7``.

    A table with several shards on one rank has their number behind its ranks. Empty unless every present fact has one
    value per table.
    """
    columns = {name: value for name in PER_TABLE if isinstance(value := facts.get(name), tuple)}
    lengths = {len(values) for values in columns.values()}
    sizes = (*columns.get("embedding_rows", ("",)), *columns.get("embedding_dims", ("",)))
    if lengths != {facts.get("n_embedding_tables")} or not all(isinstance(size, int) for size in sizes):
        return []
    tables = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    lines = [_line(index, table) for index, table in enumerate(tables[:_MAX_LINES])]
    left = len(tables) - len(lines)
    return [*lines, *([f"and {left:,} more: see --json"] if left else [])]


def _line(index: int, table: Mapping[str, object]) -> str:
    parts = [f"{table.get('embedding_tables', index)}: {table['embedding_rows']:,} x {table['embedding_dims']}"]
    kind, rows = table.get("embedding_pooling_types"), table.get("embedding_pooling")
    pooled = f"{kind} of " if kind not in {None, "none"} else ""
    parts += [f"{pooled}{rows:g} rows"] if isinstance(rows, int | float) else [str(kind)] if pooled else []
    if "embedding_sharding" in table:
        kernel = f" ({table['embedding_kernel']})" if "embedding_kernel" in table else ""
        ranks = f" on {_ranks(str(table['embedding_ranks']))}" if "embedding_ranks" in table else ""
        parts.append(f"{table['embedding_sharding']}{kernel}{ranks}")
    return ", ".join(parts)


def _ranks(text: str) -> str:
    """Return ranks as text for people, each once.

    >>> _ranks("3"), _ranks("0+1"), _ranks("0-3+0-3"), _ranks("1+1")
    ('rank 3', 'ranks 0+1', 'ranks 0-3 (8 shards)', 'rank 1 (2 shards)')
    """
    words = text.split("+")
    distinct = [*dict.fromkeys(words)]
    many = f" ({sum(map(_size, words))} shards)" if len(distinct) < len(words) else ""
    return f"rank{'s' if sum(map(_size, distinct)) > 1 else ''} {'+'.join(distinct)}{many}"


def _size(word: str) -> int:
    first, _, last = word.partition("-")
    return int(last or first) - int(first) + 1 if first.isdecimal() and (last or first).isdecimal() else 1
