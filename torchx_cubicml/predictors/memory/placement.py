"""Placement of rows in the memory order: coordinates, and groups of rows that are equal in everything else.

Many rows are placed at once, from the distinct values of each parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.features.rows import choices_of
from torchx_cubicml.predictors.memory.order import ACCUMULATION, BATCH, SHARDED_ACCUMULATION, coordinates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.memory.order import MemoryOrder
    from torchx_cubicml.records.values import Scalar, Value

_ORDERED = "\0ordered"  # key of every value with coordinates; no text of a space file holds this character


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRows:
    """``n`` rows in the memory order.

    Args:
        group: number of the group, ``[n]``; -1 where no outcome is equal in everything that has no coordinates.
        low: least coordinates, ``[n, n_coordinates]``.
        high: largest coordinates; they differ from ``low`` only for a value per layer where each outcome has one value.
    """

    group: NDArray[np.intp]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """Keys of one parameter, and the index of the key of each row, ``[n]``."""

    keys: Sequence[Value | None]
    index: NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One ordered parameter.

    Args:
        name: of the parameter.
        respect: see ``order``.
        width: entries of its values; 1 where each outcome has one value for all layers.
        n_coordinates: of an entry.
    """

    name: str
    respect: str
    width: int
    n_coordinates: int

    @classmethod
    def of(cls, name: str, respect: str, rows: Sequence[Mapping[str, Value]]) -> Self:
        values = {row[name] for row in rows if name in row}
        entries = {entry for value in values for entry in (value if isinstance(value, tuple) else (value,))}
        sizes = [len(found) for entry in entries if (found := coordinates(respect, entry)) is not None]
        width = max((len(value) for value in values if isinstance(value, tuple)), default=1)
        return cls(name=name, respect=respect, width=max(width, 1), n_coordinates=max(sizes, default=1))

    @property
    def n_columns(self) -> int:
        return self.width * self.n_coordinates

    def place(self, rows: Sequence[Mapping[str, Value]]) -> tuple[_Keys, NDArray[np.float64], NDArray[np.float64]]:
        """Return the keys of rows, and their least and largest coordinates, ``[n, n_columns]`` each."""
        values, picked = choices_of(rows, self.name)
        if picked.shape[1] > 1:
            return self._place_entries(values, picked)
        placed = [self._bounds(value) for value in values]
        keys = [_ORDERED if found is not None else value for value, found in zip(values, placed, strict=True)]
        index, empty = picked[:, 0], np.zeros(self.n_columns)
        low, high = (
            np.array([empty if found is None else found[side] for found in placed]).reshape(-1, self.n_columns)[index]
            for side in (0, 1)
        )
        return _Keys(keys=keys, index=index), low, high

    def _place_entries(
        self, values: Sequence[Value | None], picked: NDArray[np.intp]
    ) -> tuple[_Keys, NDArray[np.float64], NDArray[np.float64]]:
        table = np.full((len(values), self.n_coordinates), np.nan)
        for row, value in zip(table, values, strict=True):
            found = None if value is None or isinstance(value, tuple) else coordinates(self.respect, value)
            row[:] = np.nan if found is None else found
        entries = table[picked]  # [n, n_entries, n_coordinates]
        low = high = np.full((len(picked), self.n_columns), np.nan)
        if self.width == 1:
            low, high = entries.min(axis=1), entries.max(axis=1)
        elif self.width == picked.shape[1]:
            low = high = entries.reshape(len(picked), -1)
        is_unknown = np.isnan(low).any(axis=1)
        unknown = np.flatnonzero(is_unknown)
        index = np.zeros(len(picked), dtype=np.intp)
        index[unknown] = 1 + np.arange(len(unknown))
        keys: list[Value | None] = [_ORDERED, *(_joined(values, entries) for entries in picked[unknown].tolist())]
        low, high = (np.where(is_unknown[:, None], 0.0, each) for each in (low, high))
        return _Keys(keys=keys, index=index), low, high

    def _bounds(self, value: Value | None) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        entries = value if isinstance(value, tuple) else (value,)
        found = [None if entry is None else coordinates(self.respect, entry) for entry in entries]
        known = [each for each in found if each is not None and len(each) == self.n_coordinates]
        if not known or len(known) < len(found) or (len(found) not in {1, self.width} and self.width > 1):
            return None
        table = np.array(known, dtype=np.float64)
        if self.width == 1:
            return table.min(axis=0), table.max(axis=0)
        whole = np.repeat(table, self.width // len(table), axis=0).ravel()
        return whole, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSpace:
    """Coordinates of rows relative to the outcomes of a workload.

    Args:
        order: of the configs.
        columns: ordered parameters.
        equal: parameters in which rows must be equal to be compared.
        tables: of each ordered and each equal parameter: number of each key of the outcomes, and the group for each
            group by the earlier parameters and number; the last row and column are of what no outcome has.
    """

    order: MemoryOrder
    columns: tuple[_Column, ...]
    equal: tuple[str, ...]
    tables: tuple[tuple[Mapping[Value | None, int], NDArray[np.intp]], ...] = ()

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Value]], order: MemoryOrder, *, unordered: frozenset[str] = frozenset()
    ) -> OutcomeSpace:
        """Return the space of outcomes; the parameters ``unordered`` have no order in it."""
        ordered = {name: respect for name, respect in order.respects.items() if name not in unordered}
        columns = tuple(_Column.of(name, respect, rows) for name, respect in ordered.items())
        equal = tuple(name for name in order.parameters if name not in ordered)
        group, tables = np.zeros(len(rows), dtype=np.intp), []
        for each in [*(column.place(rows)[0] for column in columns), *(_keys(rows, name) for name in equal)]:
            found = [each.keys[index] for index in each.index.tolist()]
            numbers = {key: number for number, key in enumerate(dict.fromkeys(found))}
            pairs, following = np.unique(
                np.column_stack([group, [numbers[key] for key in found]]), axis=0, return_inverse=True
            )
            table = np.full((int(group.max()) + 2, len(numbers) + 1), -1, dtype=np.intp)
            table[pairs[:, 0], pairs[:, 1]] = np.arange(len(pairs))
            tables.append((numbers, table))
            group = following.reshape(-1).astype(np.intp)
        return cls(order=order, columns=columns, equal=equal, tables=tuple(tables))

    def place(self, rows: Sequence[Mapping[str, Value]]) -> PlacedRows:
        """Return rows in the order of the outcomes."""
        placed = [column.place(rows) for column in self.columns]
        keys = [*(each for each, _, _ in placed), *(_keys(rows, name) for name in self.equal)]
        group = np.zeros(len(rows), dtype=np.intp)
        for each, (numbers, table) in zip(keys, self.tables, strict=True):
            group = table[group, np.array([numbers.get(key, -1) for key in each.keys], dtype=np.intp)[each.index]]
        samples = self._samples(rows)
        return PlacedRows(
            group=group,
            low=np.hstack([samples, *(low for _, low, _ in placed)]),
            high=np.hstack([samples, *(high for _, _, high in placed)]),
        )

    def names(self) -> list[tuple[str, ...]]:
        """Return the parameters that each coordinate stands for."""
        names: list[tuple[str, ...]] = [(each.name,) for each in self.columns for _ in range(each.n_columns)]
        return [self._factors, *names] if self._factors else names

    @property
    def _factors(self) -> tuple[str, ...]:
        ordered = {column.respect: column.name for column in self.columns}
        accumulation = ordered.get(ACCUMULATION) or ordered.get(SHARDED_ACCUMULATION)
        # Steps of a micro batch without an order are compared where that is equal.
        batch = next((name for name, respect in self.order.respects.items() if respect == BATCH), None)
        return (batch, accumulation) if batch and accumulation else ()

    def _samples(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return micro batch times accumulation, ``[n, 1]``, as pipelines keep several micro batches; else nothing."""
        found = np.ones((len(rows), min(len(self._factors), 1)))
        for name in self._factors:
            values, picked = choices_of(rows, name)
            found *= np.array([number(value) for value in values])[picked[:, :1]]
        return found

    def is_own(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows are the user's own config, ``[n]``."""
        own = {**self.order.workload, **self.order.own}
        is_own = np.full(len(rows), bool(self.order.own) and own.keys() >= set(self.order.parameters))
        for name in self.order.parameters if is_own.any() else ():
            values, picked = choices_of(rows, name)
            value = own[name]
            wanted: tuple[Value, ...] = value if isinstance(value, tuple) and picked.shape[1] > 1 else (value,)
            if len(wanted) not in {1, picked.shape[1]}:
                return np.zeros(len(rows), dtype=np.bool_)
            same = np.array([[each == entry for entry in wanted] for each in values], dtype=np.bool_)
            is_own &= same[picked, np.arange(picked.shape[1]) % len(wanted)].all(axis=1)
        return is_own


def _keys(rows: Sequence[Mapping[str, Value]], name: str) -> _Keys:
    values, picked = choices_of(rows, name)
    if picked.shape[1] == 1:
        return _Keys(keys=values, index=picked[:, 0])
    distinct, index = np.unique(picked, axis=0, return_inverse=True)
    return _Keys(keys=[_joined(values, entries) for entries in distinct.tolist()], index=index.reshape(-1))


def _joined(values: Sequence[Value | None], entries: Sequence[int]) -> tuple[Scalar, ...]:
    found = (values[entry] for entry in entries)
    return tuple(value for value in found if value is not None and not isinstance(value, tuple))


def number(value: Value | None) -> float:
    """Return the number that a value is; 0.0 if it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
