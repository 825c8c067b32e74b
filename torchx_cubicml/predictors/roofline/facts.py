"""Facts under standard names as arrays, read from rows or decoded from encoded columns."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.features.columns import UNSEEN, unseen_word
from torchx_cubicml.records.standard_words import OFF_WORDS, ON_WORDS, standard_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.records.values import Scalar, Value

ON, OFF = (*ON_WORDS, "1.0"), (*OFF_WORDS, "0.0")
NUMBERS = (
    "capacity_factor",
    "cp_degree",
    "d_ff",
    "d_model",
    "dp_degree",
    "dp_replicate_degree",
    "dp_shard_degree",
    "ep_degree",
    "expert_d_ff",
    "expert_tp_degree",
    "global_batch_size",
    "gradient_accumulation_steps",
    "head_dim",
    "micro_batch_size",
    "n_active_experts",
    "n_dense_layers",
    "n_experts",
    "n_heads",
    "n_kv_heads",
    "n_layers",
    "n_params",
    "nnodes",
    "nproc_per_node",
    "optimizer_offload_fraction",
    "pp_degree",
    "pp_stages",
    "seq_len",
    "shared_expert_d_ff",
    "tp_degree",
    "virtual_pp_degree",
    "vocab_size",
    "world_size",
    "zero_stage",
)
WORDS = (
    "activation_checkpointing",
    "activation_cpu_offload",
    "attention_kernel",
    "compile",
    "cp_method",
    "cpu_offload",
    "device",
    "optimizer_cpu_offload",
    "overlap_communication",
    "pp_schedule",
    "precision",
    "selective_recompute",
    "sequence_parallel",
    "sharding_strategy",
    "tied_embeddings",
    "tp_overlap",
)

LEAST, MOST = 1e-3, 1e15  # plausible range of a count or a size; powers and products of a few do not overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of ``n`` rows under the standard names.

    Args:
        n: number of rows.
        numbers: name -> float64 ``[n]``, NaN where unknown; a name that no row contains may be absent.
        shares: name -> word -> share of the layers with that word, float64 ``[n]``; one value for all layers has share
            1, and all shares are 0 where the fact is unknown.
    """

    n: int
    numbers: Mapping[str, NDArray[np.float64]]
    shares: Mapping[str, Mapping[str, NDArray[np.float64]]]

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return the facts of ``rows``."""
        numbers = {name: np.array([_number(row.get(name)) for row in rows], dtype=np.float64) for name in NUMBERS}
        shares: defaultdict[str, dict[str, NDArray[np.float64]]] = defaultdict(dict)
        for name in WORDS:
            for index, row in enumerate(rows):
                entries = _entries(row.get(name))
                for entry in entries:
                    share = shares[name].setdefault(str(entry), np.zeros(len(rows)))
                    share[index] += 1.0 / len(entries)
        return cls(n=len(rows), numbers=numbers, shares=shares)

    def number(self, name: str, default: float | NDArray[np.float64] = np.nan) -> NDArray[np.float64]:
        """Return a number, ``default`` where it is unknown or outside ``LEAST`` to ``MOST``, float64 ``[n]``."""
        value = self.numbers.get(name)
        if value is None:
            return np.broadcast_to(np.asarray(default, dtype=np.float64), (self.n,))
        return np.where((value >= LEAST) & (value <= MOST), value, default)

    def told(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the rows where a number is known, 0 included, bool ``[n]``."""
        value = self.numbers.get(name)
        return np.zeros(self.n, dtype=np.bool_) if value is None else np.asarray((value >= 0.0) & (value <= MOST))

    def share(self, name: str, words: Iterable[str]) -> NDArray[np.float64]:
        """Return the share of layers with any of ``words``, in any spelling, float64 ``[n]``; 0 where unknown."""
        accepted = {word.lower() for word in words}
        known = self.shares.get(name, {})
        matching = (share for word, share in known.items() if {word.lower(), _standard(name, word)} & accepted)
        return sum(matching, np.zeros(self.n))

    def known(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the rows where a fact in words is known, bool ``[n]``."""
        return np.asarray(self.share(name, self.shares.get(name, {})) > 0.0)


class Decoder:
    """Decoder of facts from rows that ``columns`` encoded.

    Args:
        columns: meaning of the columns.
        rows: those that the columns were fitted on; they contain the names of the categories.
    """

    def __init__(self, columns: Columns, rows: Sequence[Mapping[str, Value]]) -> None:
        column_of = {name: index for index, name in enumerate(columns.names)}
        self.numbers = {
            name: column_of[name] for name in NUMBERS if name in column_of and not columns.categorical[column_of[name]]
        }
        self.shares: dict[tuple[str, str], int] = {}
        self.codes: dict[tuple[str, str], tuple[int, float]] = {}
        self.words: dict[str, int] = {}
        for name in WORDS:
            prefix = f"{name}.share("
            found = {text[len(prefix) : -1]: index for text, index in column_of.items() if text.startswith(prefix)}
            self.shares |= {(name, word): index for word, index in found.items()}
            if name in column_of:
                self.words[name] = column_of[name]
                self._add_codes(name, column_of[name], columns, rows)

    def _add_codes(self, name: str, index: int, columns: Columns, rows: Sequence[Mapping[str, Value]]) -> None:
        # In Python True equals 1, in the columns it does not: the keys are texts to keep both apart.
        values = {str(row[name]): row[name] for row in rows if name in row}
        codes = columns.encode([{name: value} for value in values.values()])[:, index] if values else np.empty(0)
        for word, code in zip(values, codes.tolist(), strict=True):
            if not np.isnan(code):
                self.codes[name, word] = index, code

    def facts(self, features: NDArray[np.float64]) -> Facts:
        """Return the facts of encoded rows, float64 ``[n, n_columns]``."""
        shares: defaultdict[str, dict[str, NDArray[np.float64]]] = defaultdict(dict)
        for (name, word), index in self.shares.items():
            shares[name][word] = np.nan_to_num(features[:, index])
        for (name, word), (index, code) in self.codes.items():
            shares[name][word] = (features[:, index] == code).astype(np.float64)
        for name, index in self.words.items():
            column = features[:, index]
            for code in np.unique(column[column >= UNSEEN]).tolist():
                shares[name][unseen_word(name, code) or ""] = (column == code).astype(np.float64)
        numbers = {name: features[:, index] for name, index in self.numbers.items()}
        return Facts(n=len(features), numbers=numbers, shares=shares)


def _standard(name: str, word: str) -> str | None:
    standard = standard_word(name, word)
    return standard.lower() if standard is not None else None


def _entries(value: Value | None) -> tuple[Scalar, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def _number(value: Value | None) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else np.nan
