"""Encoding of rows of facts as numeric columns.

Numbers stay numbers, even where another trial has a text in their place. Booleans and texts become categories. A value
per layer becomes one column per layer. It also becomes the share of layers of each choice, because few trials inform
about each single layer. A device becomes its name and, where the name is known, its peak and its memory, so that
measurements on one generation of devices carry over to the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import numpy as np

from torchx_cubicml.facts.hook_registry import hook_fact, hook_names, illegal_hook_fact
from torchx_cubicml.predictors.features.device_specs import find_hardware, hardware_names, precision_word
from torchx_cubicml.records.job_time import QUEUE_S
from torchx_cubicml.records.resumption import RESUMPTION_FACTS
from torchx_cubicml.records.standard_names import STANDARD_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Scalar, Value

VOLATILE_FACTS = (
    "attempt",
    "caught_out_of_memory",
    "ended_at",
    "host",
    "host_cpus",
    "hostname",
    "hosts",
    "idle_cpus",
    "job_id",
    "launch_id",
    "measured_training",
    "other_busy_cpus",
    "other_device_processes",
    "other_device_share",
    "pid",
    "project",
    QUEUE_S,
    "rank",
    "restart_cause",
    "saves_checkpoints",
    "scheduler_job_id",
    "started_at",
    "time",
    "torchx_job_id",
    "trainings",
    "trial_id",
    "visible_devices",
    *RESUMPTION_FACTS,
    *map(hook_fact, hook_names()),
    *map(illegal_hook_fact, hook_names()),
)
"""Facts that differ from launch to launch whatever the config is, or say nothing of speed; they become no columns."""

MAX_NUMBER = 1e30  # of either sign; a larger one is no real fact, and its square may overflow
MAX_CATEGORIES = 200  # of one column; scikit-learn's trees take 255
MAX_ENTRIES = 256  # columns for the entries of one tuple; further layers of deeper models count in the shares alone
MAX_SHARES = 16

DEVICE = "device"
UNSEEN = 1000.0
"""Code of the first known word; codes from here on are known words that are not in the history."""

_WORDS: dict[str, tuple[str, ...]] = {
    DEVICE: hardware_names(),
    **{name: tuple(sorted(words)) for name, words in STANDARD_WORDS.items()},
}

_PER_TABLE = ("embedding_kernel", "embedding_sharding")  # the formulas read each entry, a word unseen so far, too

_Label: TypeAlias = tuple[int, float | str]


class _Block(Protocol):
    """Encoder of one fact as columns."""

    @property
    def source(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def categorical(self) -> tuple[bool, ...]: ...
    def encode(self, values: Sequence[Value | None], out: NDArray[np.float64]) -> None:
        """Fill ``out`` [n, n_names], which is full of NaN on entry."""

    def encode_entries(self, choices: Sequence[Scalar], picked: NDArray[np.intp], out: NDArray[np.float64]) -> None:
        """Fill ``out`` for tuples whose entries are the choices at ``picked`` [n, n_entries]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Encoder of a table of facts: fitted on rows, then applied to any others.

    Args:
        names: of the columns, sorted by fact, so that the order of rows never matters.
        categorical: whether each column holds codes of categories; the others hold numbers.
        blocks: the encoders fact by fact.
    """

    names: tuple[str, ...]
    categorical: tuple[bool, ...]
    blocks: tuple[_Block, ...]

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return the columns fitted on ``rows``.

        >>> columns = Columns.from_rows([{"precision": "bf16", "tp_degree": 1}, {"precision": "fp32", "tp_degree": 8}])
        >>> columns.names, columns.categorical
        (('precision', 'tp_degree'), (True, False))
        >>> columns.encode([{"precision": "fp32", "tp_degree": 2}, {"precision": "int4"}]).tolist()
        [[1.0, 2.0], [nan, nan]]
        """
        known: defaultdict[str, list[Value]] = defaultdict(list)
        for row in rows:
            for name, value in row.items():
                known[name].append(value)
        blocks = tuple(_block_of(name, known[name]) for name in sorted(known) if name not in VOLATILE_FACTS)
        return cls(
            names=tuple(name for block in blocks for name in block.names),
            categorical=tuple(flag for block in blocks for flag in block.categorical),
            blocks=blocks,
        )

    def encode(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return ``rows`` as float64 ``[n, n_columns]``; NaN where a value is missing or unseen.

        An unseen category that is a standard word, or a known device, has a code from ``UNSEEN`` on: see
        ``unseen_word``.
        """
        table = np.full((len(rows), len(self.names)), np.nan)
        start = 0
        for block in self.blocks:
            stop = start + len(block.names)
            block.encode([row.get(block.source) for row in rows], table[:, start:stop])
            start = stop
        return table

    def of(self, facts: Iterable[str]) -> list[int]:
        """Return the indices of the columns that encode one of ``facts``."""
        sources = [block.source for block in self.blocks for _ in block.names]
        chosen = set(facts)
        return [column for column, source in enumerate(sources) if source in chosen]


@dataclass(frozen=True, slots=True)
class _Number:
    source: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def categorical(self) -> tuple[bool, ...]:
        return (False,)

    def encode(self, values: Sequence[Value | None], out: NDArray[np.float64]) -> None:
        out[:, 0] = [_number(value) for value in values]

    def encode_entries(self, choices: Sequence[Scalar], picked: NDArray[np.intp], out: NDArray[np.float64]) -> None:
        """Leave NaN: a tuple is no number."""


@dataclass(frozen=True, slots=True)
class _Category:
    source: str
    codes: Mapping[_Label, float]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def categorical(self) -> tuple[bool, ...]:
        return (True,)

    def encode(self, values: Sequence[Value | None], out: NDArray[np.float64]) -> None:
        out[:, 0] = [np.nan if value is None or isinstance(value, tuple) else self._code(value) for value in values]

    def _code(self, value: Scalar) -> float:
        code = self.codes.get(_label(value))
        return _unseen_code(self.source, value) if code is None else code

    def encode_entries(self, choices: Sequence[Scalar], picked: NDArray[np.intp], out: NDArray[np.float64]) -> None:
        """Leave NaN: a tuple is none of the categories."""


@dataclass(frozen=True, slots=True)
class _Device:
    """Name of a device, with its peak and its memory from public data sheets."""

    category: _Category

    @property
    def source(self) -> str:
        return self.category.source

    @property
    def names(self) -> tuple[str, ...]:
        return (self.source, f"{self.source}.tflops", f"{self.source}.memory_gb")

    @property
    def categorical(self) -> tuple[bool, ...]:
        return (True, False, False)

    def encode(self, values: Sequence[Value | None], out: NDArray[np.float64]) -> None:
        self.category.encode(values, out[:, :1])
        facts = {value: find_hardware(value) for value in set(values) if isinstance(value, str)}
        for row, value in zip(out, values, strict=True):
            found = facts.get(value) if isinstance(value, str) else None
            if found is not None:
                row[1:] = found.peak("bf16") / 1e12, found.memory / 1e9

    def encode_entries(self, choices: Sequence[Scalar], picked: NDArray[np.intp], out: NDArray[np.float64]) -> None:
        """Leave NaN: a tuple is no device."""


@dataclass(frozen=True, slots=True)
class _Mixed:
    """Numbers, and words in place of a number (``auto``): one such trial must not turn the fact into a category."""

    numbers: _Number
    others: _Category

    @property
    def source(self) -> str:
        return self.numbers.source

    @property
    def names(self) -> tuple[str, ...]:
        return (self.source, f"{self.source}.other")

    @property
    def categorical(self) -> tuple[bool, ...]:
        return (False, True)

    def encode(self, values: Sequence[Value | None], out: NDArray[np.float64]) -> None:
        self.numbers.encode(values, out[:, :1])
        self.others.encode(values, out[:, 1:])

    def encode_entries(self, choices: Sequence[Scalar], picked: NDArray[np.intp], out: NDArray[np.float64]) -> None:
        """Leave NaN: a tuple is neither."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of a tuple (numbers if ``codes`` is ``None``), and shares of its choices; a scalar fills all entries."""

    source: str
    width: int
    codes: Mapping[_Label, float] | None
    shares: tuple[_Label, ...]

    @property
    def names(self) -> tuple[str, ...]:
        entries = (f"{self.source}[{position}]" for position in range(self.width))
        return (*entries, *(f"{self.source}.share({_text(label)})" for label in self.shares))

    @property
    def categorical(self) -> tuple[bool, ...]:
        return (self.codes is not None,) * self.width + (False,) * len(self.shares)

    def encode(self, values: Sequence[Value | None], out: NDArray[np.float64]) -> None:
        for row, value in zip(out, values, strict=True):
            if isinstance(value, tuple):
                self._fill(value, row)
            elif value is not None:
                self._fill((value,), row)
                row[: self.width] = row[:1]

    def encode_entries(self, choices: Sequence[Scalar], picked: NDArray[np.intp], out: NDArray[np.float64]) -> None:
        encoded_choices = np.full((len(choices), len(self.names)), np.nan)
        self.encode([(choice,) for choice in choices], encoded_choices)  # the shares of one entry are one-hot
        n_entries = min(picked.shape[1], self.width)
        out[:, :n_entries] = encoded_choices[:, 0][picked[:, :n_entries]] if self.width else 0.0
        for column in range(self.width, len(self.names)):
            out[:, column] = encoded_choices[:, column][picked].sum(axis=1) / picked.shape[1]

    def _fill(self, entries: tuple[Scalar, ...], row: NDArray[np.float64]) -> None:
        n_entries = min(len(entries), self.width)
        labels = [_label(entry) for entry in entries]
        if self.codes is None:
            row[:n_entries] = [_number(entry) for entry in entries[:n_entries]]
        else:
            row[:n_entries] = [self._code(entry, label) for entry, label in zip(entries, labels, strict=True)][
                :n_entries
            ]
        if entries:
            row[self.width :] = [labels.count(label) / len(labels) for label in self.shares]

    def _code(self, entry: Scalar, label: _Label) -> float:
        code = (self.codes or {}).get(label)
        if code is None:
            return _unseen_code(self.source, entry) if self.source in _PER_TABLE else np.nan
        return code


def unseen_word(name: str, code: float) -> str | None:
    """Return the standard word that a code of the fact ``name`` stands for; ``None`` for a code of the history.

    >>> columns = Columns.from_rows([{"device": "A100"}, {"device": "H100"}])
    >>> [unseen_word("device", code) for code in columns.encode([{"device": "A100"}, {"device": "GB300"}])[:, 0]]
    [None, 'gb300']
    """
    words = _WORDS.get(name, ())
    position = code - UNSEEN
    return words[int(position)] if 0 <= position < len(words) else None


def _unseen_code(name: str, value: Scalar) -> float:
    word = str(value)
    if name == DEVICE:
        found = find_hardware(word)
        word = found.name if found else ""
    elif name == "precision":
        word = precision_word(word) or ""
    words = _WORDS.get(name, ())
    return UNSEEN + words.index(word) if word in words else np.nan


def _block_of(name: str, values: Sequence[Value]) -> _Block:
    scalars = [value for value in values if not isinstance(value, tuple)]
    tuples = [value for value in values if isinstance(value, tuple)]
    if not tuples:
        others = [value for value in scalars if not _all_numbers([value])]
        if not others:
            return _Number(name)
        n_numbers = len({value for value in scalars if _all_numbers([value])})
        if n_numbers > len(set(map(_label, others))):
            return _Mixed(_Number(name), _Category(name, _codes(others)))
        category = _Category(name, _codes(scalars))
        return _Device(category) if name == DEVICE else category
    entries = [*scalars, *(entry for value in tuples for entry in value)]
    shares = _frequent(entries, MAX_SHARES + 1)
    return _Entries(
        name,
        min(max(map(len, tuples)), MAX_ENTRIES),
        None if _all_numbers(entries) else _codes(entries),
        tuple(shares) if len(shares) <= MAX_SHARES else (),
    )


def _codes(values: Iterable[Scalar]) -> dict[_Label, float]:
    return {label: float(code) for code, label in enumerate(_frequent(values, MAX_CATEGORIES))}


def _frequent(values: Iterable[Scalar], limit: int) -> list[_Label]:
    counts = Counter(map(_label, values))
    return sorted(sorted(counts, key=lambda label: (-counts[label], label))[:limit])


def _label(value: Scalar) -> _Label:
    if isinstance(value, str):
        return 2, value
    return (0, float(value)) if isinstance(value, bool) else (1, float(value))  # True is not 1


def _text(label: _Label) -> str:
    kind, value = label
    return str(bool(value)) if kind == 0 else str(value).removesuffix(".0")


def _number(value: Value | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return np.nan
    return min(max(float(value), -MAX_NUMBER), MAX_NUMBER)


def _all_numbers(values: Iterable[Scalar]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
