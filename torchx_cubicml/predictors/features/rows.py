"""Features of configs: rows of facts from choice indices, encoded for many configs at once.

A derived parameter is evaluated once for each combination of choices that occurs, and everything else is a look-up in
tables of a few choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, overload

import numpy as np

from torchx_cubicml.records.trial import Value
from torchx_cubicml.space.encoding import config_at, distinct_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.space import SearchSpace


class VectorColumns:
    """Encodes rows of choice indices as ``Columns.encode`` does rows of facts.

    Args:
        space: bound.
        columns: what the features mean.
        facts: what is known besides the config; a parameter's value stands before it.
        instead: values that stand for whatever is chosen of these parameters.
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
        """Return features of legal rows, float64 ``[n, n_columns]``; NaN where a value was never seen.

        Args:
            vectors: choice index per dimension, ``[n, n_dimensions]``.
        """
        table = np.full((len(vectors), len(self._columns.names)), np.nan)
        start = 0
        for block in self._columns.blocks:
            stop = start + len(block.names)
            out, name = table[:, start:stop], block.source
            if name not in self._chosen:
                alone = np.full((1, stop - start), np.nan)
                block.encode([self._known.get(name)], alone)
                out[:] = alone
            elif name in self._derived or not self._dimensions[name][0][1].positions:
                values, which = self._values(name, vectors)
                alone = np.full((len(values), stop - start), np.nan)
                block.encode(values, alone)
                out[:] = alone[which]
            else:
                block.encode_entries(*self._entries(name, vectors), out)
            start = stop
        return table

    def _values(self, name: str, vectors: NDArray[np.intp]) -> tuple[list[Value], NDArray[np.intp]]:
        """Return the distinct values of a parameter, and for every row which of them it is."""
        legal = self._space.legal
        first, which = distinct_rows(vectors[:, legal.reads(name)])
        return [legal.value(name, vectors[row].tolist()) for row in first.tolist()], which

    def _entries(self, name: str, vectors: NDArray[np.intp]) -> tuple[Sequence[bool | float | str], NDArray[np.intp]]:
        """Return the choices of a per-layer parameter, and which each of its entries has, ``[n, n_entries]``."""
        dimensions = self._dimensions[name]
        columns = [column for column, dimension in dimensions for _ in dimension.positions]
        return dimensions[0][1].choices, vectors[:, columns]


class FactRows:
    """Configs of one space as rows of facts, as training rows are: what is known, then the config.

    Args:
        space: bound.
        facts: what is known besides the config; a parameter's value stands before it.
        instead: values that stand for whatever is chosen of these parameters.
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
        """Return what makes features of choice vectors, the same for the same ``columns``."""
        if id(columns) not in self._encoders:
            made = VectorColumns(self._space, columns, facts=self._facts, instead=self._instead)
            self._encoders[id(columns)] = columns, made
        return self._encoders[id(columns)][1]


class VectorRows(Sequence[Mapping[str, Value]]):
    """Rows of facts at choice vectors; worked out when they are asked for, and features need none of them."""

    def __init__(self, source: FactRows, vectors: NDArray[np.intp]) -> None:
        self._source, self._vectors = source, vectors
        self._all: list[Mapping[str, Value]] | None = None

    def __len__(self) -> int:
        return len(self._vectors)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Value]: ...
    @overload
    def __getitem__(self, place: slice) -> VectorRows: ...
    def __getitem__(self, place: int | slice) -> Mapping[str, Value] | VectorRows:
        if isinstance(place, slice):
            return VectorRows(self._source, self._vectors[place])
        return self._source.of(self._source.config_at(self._vectors[place]))

    def __iter__(self) -> Iterator[Mapping[str, Value]]:
        if self._all is None:  # who walks through them once does so for each fact
            self._all = [self[place] for place in range(len(self))]
        return iter(self._all)

    def encoded(self, columns: Columns) -> NDArray[np.float64]:
        """Return the features, float64 ``[n, n_columns]``."""
        return self._source.encoder(columns).encode(self._vectors)


def encoded(columns: Columns, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
    """Return what ``columns.encode`` makes of ``rows``, float64 ``[n, n_columns]``."""
    return rows.encoded(columns) if isinstance(rows, VectorRows) else columns.encode(rows)
