"""Encoding of configs as points: numbers scaled to 0..1, one-hot categories, and per-layer choices with their shares.

The kernel of the Gaussian process and the memory model of one workload are built on it. It is generic over names but
for a few facts: ``layer_n_params`` contains the sizes of the layers, by which layers are weighted. Embedding tables are
weighted by the numbers that one sample looks up in them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.records.values import Scalar

SIZES = "layer_n_params"
_TABLE_SIZES = ("embedding_dims", "embedding_pooling")  # their product
_PER_TABLE = ("embedding_kernel", "embedding_sharding")
_LOG_FROM_RATIO = 8.0  # ratio of largest to smallest from which a number is taken on a logarithmic scale
_ENTRY = re.compile(r"(.+)\[(\d+)\]")
_FEWEST_STEPWISE = 6  # distinct whole numbers from which throughput may jump between them
_MOST_DIVISIONS = 6  # divisions by two that are distinguished
_MOST_WHOLE = 2.0**62  # numbers are clipped to it; the divisors of a larger one carry no information
_MOST_OUTSIDE = 1.0  # distance beyond the known range at which a number is clipped, in ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """Numeric column on a scale of 0..1.

    Args:
        name: of the fact.
        column: index in the encoded table.
        low: value at 0, or its logarithm.
        width: of the range, likewise.
        logarithmic: whether logarithms are taken.
        stepwise: whether throughput may jump from one value to the next: whole numbers, not all of them powers of two.
    """

    name: str
    column: int
    low: float
    width: float
    logarithmic: bool
    stepwise: bool

    def power_of_two(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the exponent of two in the number of each row, ``[n]``: tiles and warps are powers of two."""
        whole = np.clip(np.nan_to_num(features[:, self.column], nan=1.0), 1.0, _MOST_WHOLE).astype(np.int64)
        return np.asarray(np.minimum(np.log2(np.maximum(whole & -whole, 1)), _MOST_DIVISIONS), dtype=np.float64)

    def scaled(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scaled numbers of rows, ``[n]``; 0.5 where the number is missing."""
        values = features[:, self.column]
        if self.logarithmic:
            values = np.log(np.maximum(values, 1e-300))
        scaled = np.clip((values - self.low) / self.width, -_MOST_OUTSIDE, 1.0 + _MOST_OUTSIDE)
        return np.asarray(np.nan_to_num(scaled, nan=0.5), dtype=np.float64)

    def unscaled(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the original numbers at the scaled ``positions``, ``[n]``."""
        values = self.low + self.width * positions
        return np.asarray(np.exp(values) if self.logarithmic else values, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerColumn:
    """Parameter with a value per layer.

    Args:
        name: of the parameter.
        columns: its entries, layer by layer.
        codes: values of an entry.
        sizes: share of each layer in the memory of all, ``[n_layers]``; the sum is 1.
        weights: share of each layer in the time of all, likewise: half by size, half the same for every layer.
        distance: between each two layers, ``[n_layers, n_layers]``: difference of indices, or of log sizes times 3.
    """

    name: str
    columns: tuple[int, ...]
    codes: tuple[float, ...]
    sizes: NDArray[np.float64]
    weights: NDArray[np.float64]
    distance: NDArray[np.float64]

    def members(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the one-hot choice of each layer, ``[n, n_codes, n_layers]`` of 0 and 1."""
        entries = features[:, self.columns]
        return np.asarray(entries[:, None, :] == np.array(self.codes)[:, None], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedConfigs:
    """``n`` configs encoded as points.

    Args:
        numbers: ``[n, n_numbers]``.
        categories: indicators, ``[n, n_indicators]``.
        members: one-hot choices of each layered parameter, ``[n, n_codes, n_layers]``.
        shares: share of each choice of each layered parameter, ``[n, n_codes]``.
        power_of_two: exponent of two in each stepwise number, ``[n, n_stepwise]``.
        memory_pressure: nearness to the memory limit, ``[n, 1]``, or ``[n, 0]`` where it is unknown.
    """

    numbers: NDArray[np.float64]
    categories: NDArray[np.float64]
    members: tuple[NDArray[np.float64], ...]
    shares: tuple[NDArray[np.float64], ...]
    power_of_two: NDArray[np.float64]
    memory_pressure: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.numbers)

    def equal(self, other: EncodedConfigs) -> NDArray[np.bool_]:
        """Return whether each of these rows equals the one row of ``other``, ``[n]``."""
        pairs = [(self.numbers, other.numbers), (self.categories, other.categories)]
        pairs += zip(self.members, other.members, strict=True)
        return np.asarray(np.all([(a == b).reshape(len(self), -1).all(axis=1) for a, b in pairs], axis=0))

    def concatenate(self, other: EncodedConfigs) -> EncodedConfigs:
        """Return these rows followed by those of ``other``."""
        return EncodedConfigs(
            numbers=np.vstack([self.numbers, other.numbers]),
            categories=np.vstack([self.categories, other.categories]),
            members=tuple(np.concatenate(pair) for pair in zip(self.members, other.members, strict=True)),
            shares=tuple(np.concatenate(pair) for pair in zip(self.shares, other.shares, strict=True)),
            power_of_two=np.vstack([self.power_of_two, other.power_of_two]),
            memory_pressure=np.vstack([self.memory_pressure, other.memory_pressure]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEncoder:
    """Encoder of rows of features as points; columns that neither vary nor are tuned are left out.

    Args:
        numbers: columns of numbers.
        indicators: column and code of each category; an unseen value has none of them.
        category_of: index in ``category_names`` of each indicator, ``[n_indicators]``.
        category_names: facts that are categories.
        layered: parameters with a value per layer.
    """

    numbers: tuple[Number, ...]
    indicators: tuple[tuple[int, float], ...]
    category_of: NDArray[np.intp]
    category_names: tuple[str, ...]
    layered: tuple[LayerColumn, ...]

    @classmethod
    def of(cls, features: NDArray[np.float64], columns: Columns, *, tuned: Mapping[str, Sequence[Scalar]]) -> Self:
        """Return the encoder fitted on ``features``, float64 ``[n, n_columns]``, n >= 1.

        Args:
            features: rows as ``columns`` encodes them.
            columns: meaning of the columns.
            tuned: parameters that candidates may vary -> their choices, whether or not rows vary in them.
        """
        entries: defaultdict[str, list[int]] = defaultdict(list)
        numbers, categories = [], []
        for index, name in enumerate(columns.names):
            found = _ENTRY.fullmatch(name)
            if found:
                entries[found[1]].append(index)
            elif ".share(" in name or (name.removesuffix(".other") not in tuned and _is_constant(features[:, index])):
                continue
            elif columns.categorical[index]:
                categories.append(index)
            else:
                numbers.append(_number(name, index, [*features[:, index].tolist(), *_numbers(tuned.get(name, ()))]))
        choices = [{name: choice} for name, each in tuned.items() for choice in each]
        seen = np.vstack([features, columns.encode(choices)]) if choices else features
        codes = [(index, _codes(seen[:, [index]])) for index in categories]
        return cls(
            numbers=tuple(number for number in numbers if number.width > 0),
            indicators=tuple((index, code) for index, each in codes for code in each),
            category_of=np.repeat(np.arange(len(codes)), [len(each) for _, each in codes]),
            category_names=tuple(columns.names[index] for index in categories),
            layered=tuple(_layered(features, seen, entries, tuned)),
        )

    def points(self, features: NDArray[np.float64]) -> EncodedConfigs:
        """Return encoded rows as points."""
        numbers = [number.scaled(features) for number in self.numbers]
        power_of_two = [number.power_of_two(features) for number in self.numbers if number.stepwise]
        columns, codes = [index for index, _ in self.indicators], [code for _, code in self.indicators]
        members = tuple(layered.members(features) for layered in self.layered)
        empty = np.empty((len(features), 0))
        return EncodedConfigs(
            numbers=np.column_stack([empty, *numbers]),
            categories=np.asarray(features[:, columns] == np.array(codes), dtype=np.float64),
            members=members,
            shares=tuple(each @ layered.weights for each, layered in zip(members, self.layered, strict=True)),
            power_of_two=np.column_stack([empty, *power_of_two]),
            memory_pressure=empty,
        )


def _layered(
    features: NDArray[np.float64],
    seen: NDArray[np.float64],
    entries: Mapping[str, list[int]],
    tuned: Mapping[str, Sequence[Scalar]],
) -> list[LayerColumn]:
    found = []
    for name, columns in entries.items():
        if name == SIZES or (name not in tuned and _is_constant(features[:, columns])):
            continue
        layer_index = np.arange(len(columns), dtype=np.float64)
        layer_column = LayerColumn(
            name=name,
            columns=tuple(columns),
            codes=_codes(seen[:, columns]),
            sizes=np.full(len(columns), 1.0 / len(columns)),
            weights=np.full(len(columns), 1.0 / len(columns)),
            distance=np.abs(layer_index[:, None] - layer_index),
        )
        sizes = _sizes(features, entries, facts=_TABLE_SIZES if name in _PER_TABLE else (SIZES,), count=len(columns))
        found.append(layer_column if sizes is None else _weighted_by_size(layer_column, sizes))
    return found


def _sizes(
    features: NDArray[np.float64], entries: Mapping[str, list[int]], *, facts: Sequence[str], count: int
) -> NDArray[np.float64] | None:
    """Return the product of constant ``facts`` of ``count`` entries each, if all are above 0; else ``None``."""
    columns = [entries.get(fact, []) for fact in facts]
    if any(len(each) != count or not _is_constant(features[:, each]) for each in columns):
        return None
    sizes = np.prod([features[0, each] for each in columns], axis=0)
    return np.asarray(sizes) if bool((sizes > 0).all()) else None


def _weighted_by_size(layered: LayerColumn, sizes: NDArray[np.float64]) -> LayerColumn:
    logs = np.log(sizes)
    share = sizes / sizes.sum()
    weights = 0.5 * (share + layered.weights)
    return replace(layered, sizes=share, weights=weights, distance=3.0 * np.abs(logs[:, None] - logs))


def _number(name: str, column: int, values: list[float]) -> Number:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    logarithmic = low > 0 and high >= _LOG_FROM_RATIO * low
    if logarithmic:
        low, high = math.log(low), math.log(high)
    whole = all(value.is_integer() and value > 0 for value in finite)
    stepwise = whole and len(set(finite)) >= _FEWEST_STEPWISE and any(int(value) & (int(value) - 1) for value in finite)
    return Number(name=name, column=column, low=low, width=high - low, logarithmic=logarithmic, stepwise=stepwise)


def _numbers(choices: Sequence[Scalar]) -> list[float]:
    return [float(choice) for choice in choices if not isinstance(choice, str)]


def _codes(columns: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(np.unique(columns[~np.isnan(columns)]).tolist())


def _is_constant(columns: NDArray[np.float64]) -> bool:
    first = columns[:1]
    return bool(((columns == first) | (np.isnan(columns) & np.isnan(first))).all())
