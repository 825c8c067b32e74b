"""Facts of recommenders as arrays, one column per table or dense layer, read from rows or decoded from columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.features.columns import DEVICE, UNSEEN, unseen_word
from torchx_cubicml.predictors.features.device_specs import REFERENCE, Hardware, find_hardware
from torchx_cubicml.predictors.roofline.facts import MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.records.values import Value

_NUMBERS = (
    "embedding_dim",
    "embedding_pooling",
    "micro_batch_size",
    "n_embedding_rows",
    "n_embedding_tables",
    "nnodes",
    "nproc_per_node",
    "reserved_share",
    "world_size",
)
_SIZE_LISTS = ("embedding_dims", "embedding_rows", "layer_n_params")
_NUMBER_LISTS = (*_SIZE_LISTS, "embedding_pooling")
_WORD_LISTS = ("embedding_kernel", "embedding_plan", "embedding_pooling_types", "embedding_ranks", "embedding_sharding")
_WORDS = (*_WORD_LISTS, "sharding_strategy", "train_pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Words of ``n`` rows by their indices in a vocabulary.

    Args:
        vocabulary: distinct words; the first is empty: the fact is unknown.
        index: int ``[n, n_entries]``; a single entry stands for all.
    """

    vocabulary: tuple[str, ...]
    index: NDArray[np.intp]

    def wide(self, width: int) -> NDArray[np.intp]:
        """Return the indices of ``width`` entries, ``[n, width]``, 0 beyond the end of a row's list."""
        if self.index.shape[1] == 1:
            return np.broadcast_to(self.index, (len(self.index), width))
        return np.pad(self.index, ((0, 0), (0, max(width - self.index.shape[1], 0))))[:, :width]

    def numbers(self, meaning: Callable[[str], float], *, width: int) -> NDArray[np.float64]:
        """Return the number that each word stands for, float64 ``[n, width]``."""
        return np.array([meaning(word) for word in self.vocabulary], dtype=np.float64)[self.wide(width)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderFacts:
    """Facts of ``n`` rows under the standard names.

    Args:
        numbers: name -> float64 ``[n]``, NaN where unknown.
        lists: name -> float64 ``[n, n_entries]``, NaN beyond the end of a row's list; a plain number is one entry.
        words: name -> words of each row, empty where unknown; a plain word is one entry.
        hardware: of one device, one per row.
    """

    numbers: Mapping[str, NDArray[np.float64]]
    lists: Mapping[str, NDArray[np.float64]]
    words: Mapping[str, Words]
    hardware: Sequence[Hardware]

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return the facts of ``rows``."""
        rows = [_consistent(row) for row in rows]
        return cls(
            numbers={name: np.array([_number(row.get(name)) for row in rows], dtype=np.float64) for name in _NUMBERS},
            lists={name: _number_table([row.get(name) for row in rows]) for name in _NUMBER_LISTS},
            words={name: _word_table([row.get(name) for row in rows]) for name in _WORDS},
            hardware=[find_hardware(str(row.get(DEVICE, ""))) or REFERENCE for row in rows],
        )

    def __len__(self) -> int:
        return len(self.hardware)


class RecommenderDecoder:
    """Decoder of a recommender's facts from rows that ``columns`` encoded.

    Args:
        columns: meaning of the columns.
        rows: those that the columns were fitted on; they contain the names of the categories.
    """

    def __init__(self, columns: Columns, rows: Sequence[Mapping[str, Value]]) -> None:
        column_of = {name: index for index, name in enumerate(columns.names)}
        self.plain = {
            name: column_of[name] for name in _NUMBERS if name in column_of and not columns.categorical[column_of[name]]
        }
        numeric = {name: index for name, index in column_of.items() if not columns.categorical[index]}
        self.entries = {name: _entry_columns(name, numeric) for name in _NUMBER_LISTS}
        self.entries |= {name: _entry_columns(name, column_of) for name in _WORDS}
        self.word_columns = {name: column_of[name] for name in (*_WORDS, DEVICE) if name in column_of}
        self.codes = {name: _codes(name, columns, rows) for name in (*_WORDS, DEVICE)}
        self.is_recommender = bool(self.entries["embedding_rows"]) or "n_embedding_tables" in self.plain

    def facts(self, features: NDArray[np.float64]) -> RecommenderFacts:
        """Return the facts of encoded rows, float64 ``[n, n_columns]``."""
        unknown = np.full(len(features), np.nan)
        devices = self._words(DEVICE, features)
        kinds = [find_hardware(device) or REFERENCE for device in devices.vocabulary]
        return RecommenderFacts(
            numbers={
                name: features[:, self.plain[name]] if name in self.plain else unknown.copy() for name in _NUMBERS
            },
            lists={name: self._numbers(name, features) for name in _NUMBER_LISTS},
            words={name: self._words(name, features) for name in _WORDS},
            hardware=[kinds[index] for index in devices.index[:, 0].tolist()],
        )

    def _numbers(self, name: str, features: NDArray[np.float64]) -> NDArray[np.float64]:
        columns = self.entries[name] or ([self.plain[name]] if name in self.plain else [])
        if not columns:
            return np.full((len(features), 1), np.nan)
        return np.where((features[:, columns] >= 0.0) & (features[:, columns] <= MOST), features[:, columns], np.nan)

    def _words(self, name: str, features: NDArray[np.float64]) -> Words:
        columns = self.entries.get(name) or ([self.word_columns[name]] if name in self.word_columns else [])
        encoded, known = features[:, columns] if columns else np.full((len(features), 1), np.nan), self.codes[name]
        index = np.zeros(encoded.shape, dtype=np.intp)
        vocabulary = [""]
        for code, word in known.items():
            index[encoded == code] = len(vocabulary)
            vocabulary.append(word)
        for code in np.unique(encoded[encoded >= UNSEEN]).tolist():
            index[encoded == code] = len(vocabulary)
            vocabulary.append(unseen_word(name, code) or "")
        return Words(vocabulary=tuple(vocabulary), index=index)


_COUNTED_BY = {"sharding_strategy": "layer_n_params"} | dict.fromkeys(
    (*_WORD_LISTS, "embedding_pooling"), "embedding_rows"
)


def _consistent(row: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return a row without the lists that have another length than the sizes that they are about, or illegal sizes."""
    sizes = {name: row.get(name) for name in _SIZE_LISTS}
    wrong = {name for name, value in sizes.items() if value is not None and not _is_list_of_sizes(value)}
    lengths = {name: len(value) for name, value in row.items() if isinstance(value, tuple) and name not in wrong}
    counted = {name: lengths.get(by) for name, by in _COUNTED_BY.items()}
    wrong |= {name for name, count in counted.items() if count is not None and lengths.get(name, count) != count}
    return {name: value for name, value in row.items() if name not in wrong} if wrong else row


def _is_list_of_sizes(value: Value) -> bool:
    return isinstance(value, tuple) and not any(np.isnan(_number(each)) for each in value)


def _entry_columns(name: str, column_of: Mapping[str, int]) -> list[int]:
    found: list[int] = []
    while (column := column_of.get(f"{name}[{len(found)}]")) is not None:
        found.append(column)
    return found


def _codes(name: str, columns: Columns, rows: Sequence[Mapping[str, Value]]) -> dict[float, str]:
    """Return code -> word of the fact ``name``, in a column of its own or in those of its entries."""
    start = columns.of((name,))
    if not start or not columns.categorical[start[0]]:
        return {}
    values = [row[name] for row in rows if name in row]
    is_list = columns.names[start[0]] != name
    words = {entry for value in values for entry in (value if isinstance(value, tuple) else (value,))}
    texts = sorted(word for word in words if isinstance(word, str))
    encoded = columns.encode([{name: (text,) if is_list else text} for text in texts])[:, start[0]]
    return {code: text for text, code in zip(texts, encoded.tolist(), strict=True) if not np.isnan(code)}


def _number_table(values: Sequence[Value | None]) -> NDArray[np.float64]:
    width = max((len(value) for value in values if isinstance(value, tuple)), default=1) or 1
    table = np.full((len(values), width), np.nan)
    known: dict[int, list[float]] = {}  # the rows of one workload share their lists
    for row, value in zip(table, values, strict=True):
        if id(value) not in known:
            known[id(value)] = [_number(each) for each in (value if isinstance(value, tuple) else (value,))]
        row[: len(known[id(value)])] = known[id(value)]
    return table


def _word_table(values: Sequence[Value | None]) -> Words:
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    width = max(map(len, rows), default=1) or 1
    known: dict[str, int] = {"": 0}
    index = np.zeros((len(rows), width), dtype=np.intp)
    for cells, value, words in zip(index, values, rows, strict=True):
        found = [0 if word is None else known.setdefault(str(word), len(known)) for word in words]
        cells[: len(found) if isinstance(value, tuple) else width] = found
    return Words(vocabulary=tuple(known), index=index)


def _number(value: Value | None) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MOST else np.nan  # type: ignore[operator,arg-type]
