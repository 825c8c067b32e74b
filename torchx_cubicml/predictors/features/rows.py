"""Features of configs: rows of choice indices, encoded for many configs at once.

A derived parameter is evaluated once for each combination of choices that occurs. Everything else is a look-up in
tables of a few choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, overload

import numpy as np

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.records.values import Value
from torchx_cubicml.space.encoding import config_at, distinct_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace


_NO_COLUMNS = Columns(names=(), categorical=(), blocks=())


class VectorColumns:
    """Vectorised encoder: it turns rows of choice indices into the features that ``Columns.encode`` gives.

    Args:
        space: bound.
        columns: meaning of the features.
        facts: known facts besides the config; a parameter's value takes precedence over them.
        instead: values that replace the chosen values of these parameters.
    """

    def __init__(
        self,
        space: SearchSpace,
        columns: Columns,
        *,
        facts: Mapping[str, Value],
        instead: Mapping[str, Value] | None = None,
    ) -> None:
        self._space, self._columns = space, columns
        self._known = {**facts, **(instead or {})}
        self._chosen = {item.name for item in space.parameters} - set(instead or ())
        self._derived = {item.name for item in space.parameters if item.derive is not None or item.when is not None}
        self._dimensions = {
            name: list(group)
            for name, group in groupby(enumerate(space.dimensions), key=lambda item: item[1].parameter)
        }

    def encode(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return features of legal rows, float64 ``[n, n_columns]``; NaN where a value is not in ``columns``.

        Args:
            vectors: choice index per dimension, ``[n, n_dimensions]``.
        """
        table = np.full((len(vectors), len(self._columns.names)), np.nan)
        start = 0
        for block in self._columns.blocks:
            stop = start + len(block.names)
            out, name = table[:, start:stop], block.source
            if name not in self._chosen:
                table_of_values = np.full((1, stop - start), np.nan)
                block.encode([self._known.get(name)], table_of_values)
                out[:] = table_of_values
            elif name in self._derived or not self._dimensions[name][0][1].positions:
                values, inverse = self._values(name, vectors)
                table_of_values = np.full((len(values), stop - start), np.nan)
                block.encode(values, table_of_values)
                out[:] = table_of_values[inverse]
            else:
                block.encode_entries(*self._entries(name, vectors), out)
            start = stop
        return table

    def choices(self, name: str, vectors: NDArray[np.intp]) -> tuple[Sequence[Value | None], NDArray[np.intp]]:
        """Return the values of one fact at legal rows; see ``choices_of``."""
        if name not in self._chosen:
            return [self._known.get(name)], np.zeros((len(vectors), 1), dtype=np.intp)
        if name in self._derived or not self._dimensions[name][0][1].positions:
            values, inverse = self._values(name, vectors)
            return values, inverse[:, None]
        dimensions = self._dimensions[name]
        entries = np.empty((len(vectors), sum(len(dimension.positions) for _, dimension in dimensions)), dtype=np.intp)
        for column, dimension in dimensions:
            entries[:, dimension.positions] = vectors[:, [column]]
        return dimensions[0][1].choices, entries

    def _values(self, name: str, vectors: NDArray[np.intp]) -> tuple[list[Value], NDArray[np.intp]]:
        """Return the distinct values of a parameter, and for every row the index of its value."""
        legal = self._space.legal
        first, inverse = distinct_rows(vectors[:, legal.reads(name)])
        return [legal.value(name, vectors[row].tolist()) for row in first.tolist()], inverse

    def _entries(self, name: str, vectors: NDArray[np.intp]) -> tuple[Sequence[bool | float | str], NDArray[np.intp]]:
        """Return the choices of a per-layer parameter, and the choice index of each entry, ``[n, n_entries]``."""
        dimensions = self._dimensions[name]
        columns = [column for column, dimension in dimensions for _ in dimension.positions]
        return dimensions[0][1].choices, vectors[:, columns]


class FactRows:
    """Configs of one space as rows of facts in the form of training rows: the known facts, then the config.

    Args:
        space: bound.
        facts: known facts besides the config; a parameter's value takes precedence over them.
        instead: values that replace the chosen values of these parameters.
    """

    def __init__(self, space: SearchSpace, *, facts: Mapping[str, Value], instead: Mapping[str, Value]) -> None:
        self._space, self._facts, self._instead = space, dict(facts), dict(instead)
        self._encoders: dict[int, tuple[Columns, VectorColumns]] = {}

    def of(self, config: Config) -> dict[str, Value]:
        """Return the row of one config."""
        return {**self._facts, **config, **self._instead}

    def at(self, vectors: NDArray[np.intp]) -> VectorRows:
        """Return the rows at legal choice vectors, ``[n, n_dimensions]``."""
        return VectorRows(self, vectors)

    def config_at(self, vector: NDArray[np.intp]) -> Config:
        """Return the config at one legal choice vector."""
        return config_at(self._space, vector)

    def encoder(self, columns: Columns) -> VectorColumns:
        """Return the encoder of choice vectors for ``columns``, cached per ``columns`` object."""
        if id(columns) not in self._encoders:
            encoder_of_columns = VectorColumns(self._space, columns, facts=self._facts, instead=self._instead)
            self._encoders[id(columns)] = columns, encoder_of_columns
        return self._encoders[id(columns)][1]


class VectorRows(Sequence[Mapping[str, Value]]):
    """Lazy sequence of rows of facts at choice vectors; features are encoded without them."""

    def __init__(self, source: FactRows, vectors: NDArray[np.intp]) -> None:
        self._source, self._vectors = source, vectors
        self._rows_cache: list[Mapping[str, Value]] | None = None

    def __len__(self) -> int:
        return len(self._vectors)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Value]: ...
    @overload
    def __getitem__(self, index: slice) -> VectorRows: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Value] | VectorRows:
        if isinstance(index, slice):
            return VectorRows(self._source, self._vectors[index])
        return self._source.of(self._source.config_at(self._vectors[index]))

    def __iter__(self) -> Iterator[Mapping[str, Value]]:
        if self._rows_cache is None:  # a caller that iterates once does so again for each fact
            self._rows_cache = [self[index] for index in range(len(self))]
        return iter(self._rows_cache)

    def choices(self, name: str) -> tuple[Sequence[Value | None], NDArray[np.intp]]:
        """Return the values of one fact; see ``choices_of``."""
        return self._source.encoder(_NO_COLUMNS).choices(name, self._vectors)

    def encode_rows(self, columns: Columns) -> NDArray[np.float64]:
        """Return the features, float64 ``[n, n_columns]``."""
        return self._source.encoder(columns).encode(self._vectors)


def encode_rows(columns: Columns, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
    """Return the features of ``rows`` by ``columns``, float64 ``[n, n_columns]``; vectorised for ``VectorRows``."""
    return rows.encode_rows(columns) if isinstance(rows, VectorRows) else columns.encode(rows)


def choices_of(rows: Sequence[Mapping[str, Value]], name: str) -> tuple[Sequence[Value | None], NDArray[np.intp]]:
    """Return values of one fact of ``rows``, and the index of the value of each row or of each of its entries.

    The indices are ``[n, 1]``, or ``[n, n_entries]`` for a value per layer, whose entries the values then are. A row
    without the fact has ``None``.

    >>> values, index = choices_of([{"tp_degree": 2}, {}, {"tp_degree": 2}], "tp_degree")
    >>> values, index[:, 0].tolist()
    ([2, None], [0, 1, 0])
    """
    if isinstance(rows, VectorRows):
        return rows.choices(name)
    found: dict[Value | None, int] = {}
    index = [found.setdefault(row.get(name), len(found)) for row in rows]
    return list(found), np.array(index, dtype=np.intp).reshape(len(rows), 1)
