"""Training table of predictors: facts and throughput of trials, with those that ran out of memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.records.memory_failure import proves_too_large
from torchx_cubicml.records.objective_units import OBJECTIVES, PER_JOULE
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.standard_names import RESHARD_SIZES
from torchx_cubicml.records.trial import State
from torchx_cubicml.space.trainers import STANDARD_PARAMETERS, STANDARD_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Scalar, Value

_UNKNOWN_CAUSE = frozenset({State.TIMEOUT, State.INFRASTRUCTURE, State.USER_ERROR, State.UNKNOWN})
TRUST = "trust_level"
"""Column of the trust level, in tables with trials of others."""
_USUAL_ERROR = 0.1  # log error of a predictor: runs with less uncertainty than that count about alike
_NONE: Mapping[str, str] = MappingProxyType({})
_NO_CHOICES: Mapping[str, Sequence[Scalar]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingTable:
    """Training data of a predictor: trials with a throughput, and those that ran out of memory.

    Rows are sorted by content, so that neither the order of the trials nor their ids matter.

    Args:
        columns: meaning of the columns of ``features``.
        rows: one mapping of facts per trial.
        features: the rows as numbers, float64 ``[n, n_columns]``; NaN where a fact is missing.
        throughput: of the whole job in units of the objective, float64 ``[n]``; NaN where infeasible.
        feasible: bool ``[n]``; false where memory ran out.
        trial_ids: of the rows.
        failures: rows of trials that failed without a throughput for an unknown cause, or ran out of memory on a device
            that others shared; they are weak evidence only.
        peak_memory_gib: largest memory of one process, float64 ``[n]``; NaN where unknown. ``None``: all unknown.
        uncertainty: of the logarithm of each throughput, as its run reported it, float64 ``[n]``; 0.0 where unknown.
            ``None``: all unknown.
        crowding: part of it that others on the host may have caused, likewise.
    """

    columns: Columns
    rows: tuple[Mapping[str, Value], ...]
    features: NDArray[np.float64]
    throughput: NDArray[np.float64]
    feasible: NDArray[np.bool_]
    trial_ids: tuple[str, ...]
    failures: tuple[Mapping[str, Value], ...] = ()
    peak_memory_gib: NDArray[np.float64] | None = None
    uncertainty: NDArray[np.float64] | None = None
    crowding: NDArray[np.float64] | None = None

    @classmethod
    def from_trials(
        cls,
        trials: Iterable[Trial],
        *,
        objective: str,
        observe: Mapping[str, str] = _NONE,
        choices: Mapping[str, Sequence[Scalar]] = _NO_CHOICES,
    ) -> Self:
        """Return the table of ``trials``.

        Args:
            trials: of one workload or of many; planned ones contain no outcome and are left out.
            objective: name of the throughput.
            observe: see ``training_row``.
            choices: parameter -> values that ``columns`` shall encode even where no trial has them yet.

        Raises:
            RecordError: ``objective`` is unknown.
        """
        learned = (*OBJECTIVES, *PER_JOULE)
        if objective not in learned:
            raise RecordError(f"unknown objective {objective!r}; choose from {', '.join(learned)}")
        outcomes: list[tuple[Mapping[str, Value], float, bool, str]] = []
        failures = []
        measured: dict[str, Trial] = {}
        for trial in trials:
            if trial.measurement is not None:
                measured[trial.trial_id] = trial
            throughput = _throughput(trial, objective)
            if proves_too_large(trial):
                outcomes.append((_row_with_trust(trial, observe), np.nan, False, trial.trial_id))
            elif throughput is not None:
                outcomes.append((_row_with_trust(trial, observe), throughput, True, trial.trial_id))
            elif trial.state in _UNKNOWN_CAUSE or trial.state is State.OUT_OF_MEMORY:
                failures.append(training_row(trial, observe=observe))
        return cls._from_outcomes(outcomes, failures, measured, choices)

    @classmethod
    def _from_outcomes(
        cls,
        outcomes: list[tuple[Mapping[str, Value], float, bool, str]],
        failures: list[dict[str, Value]],
        measured: Mapping[str, Trial],
        choices: Mapping[str, Sequence[Scalar]],
    ) -> Self:
        rows = [row for row, _, _, _ in outcomes]
        columns = Columns.from_rows([*rows, *({name: each} for name, values in choices.items() for each in values)])
        features = columns.encode(rows)
        throughput = np.array([value for _, value, _, _ in outcomes], dtype=np.float64)
        feasible = np.array([feasible_row for _, _, feasible_row, _ in outcomes], dtype=np.bool_)
        trial_ids = [trial_id for _, _, _, trial_id in outcomes]
        rank_of = {trial_id: rank for rank, trial_id in enumerate(sorted(trial_ids))}
        ranks = [rank_of[trial_id] for trial_id in trial_ids]
        order = np.lexsort((ranks, throughput, *features.T[::-1]))
        found = [measured.get(trial_ids[index]) for index in order]
        runs = [each.measurement if each else None for each in found]
        peaks = [each.peak_gib if each else None for each in runs]
        return cls(
            columns=columns,
            rows=tuple(rows[index] for index in order),
            features=features[order],
            throughput=throughput[order],
            feasible=feasible[order],
            trial_ids=tuple(trial_ids[index] for index in order),
            failures=tuple(sorted(failures, key=config_key)),
            peak_memory_gib=np.array([np.nan if peak is None else peak for peak in peaks], dtype=np.float64),
            uncertainty=np.array([each.uncertainty if each else 0.0 for each in runs], dtype=np.float64),
            crowding=np.array([(each.crowding or 0.0) if each else 0.0 for each in found], dtype=np.float64),
        )

    @property
    def has_peaks(self) -> bool:
        """True where the peak memory of any row is known."""
        return self.peak_memory_gib is not None and bool(np.isfinite(self.peak_memory_gib).any())

    @property
    def measured(self) -> MeasuredRows:
        """Rows with a throughput, in an order that does not depend on trial ids."""
        rows = np.flatnonzero(np.isfinite(self.throughput) & (self.throughput > 0))
        uncertainty = np.zeros(len(self.throughput)) if self.uncertainty is None else self.uncertainty
        order = np.lexsort(np.column_stack([uncertainty[rows], self.throughput[rows], self.features[rows]]).T)
        rows = rows[order]
        return MeasuredRows(
            features=self.features[rows],
            throughput=self.throughput[rows],
            uncertainty=uncertainty[rows],
            crowding=np.zeros(len(rows)) if self.crowding is None else self.crowding[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRows:
    """Measured rows of a history.

    Args:
        features: float64 ``[n, n_columns]``.
        throughput: float64 ``[n]``, > 0.
        uncertainty: of its logarithm, as each run reported it, float64 ``[n]``; 0.0 where unknown.
        crowding: part of it that others on the host may have caused, float64 ``[n]``.
    """

    features: NDArray[np.float64]
    throughput: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    crowding: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.throughput)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Self:
        """Return the rows at the indices ``chosen``, or where the mask ``chosen`` is true."""
        return replace(self, **{each.name: getattr(self, each.name)[chosen] for each in fields(self)})

    @property
    def logarithm(self) -> NDArray[np.float64]:
        """Logarithm of throughput, ``[n]``."""
        return np.asarray(np.log(self.throughput), dtype=np.float64)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weight of each row relative to one without uncertainty, above 0 and at most 1, ``[n]``."""
        return np.asarray(_USUAL_ERROR**2 / (_USUAL_ERROR**2 + self.uncertainty**2), dtype=np.float64)


def training_row(trial: Trial, *, observe: Mapping[str, str] = _NONE) -> dict[str, Value]:
    """Return the facts of a trial; for parameters with a standard name, the observed value replaces the requested one.

    A config with its own words (``bfloat16`` for ``bf16``) keeps them, or no row could be compared with a candidate.

    Args:
        trial: any.
        observe: parameter -> the standard name under which its effect is observed, where that is not its own name;
            empty if it is not observed.

    >>> from torchx_cubicml.records.trial import State, Trial
    >>> asked = {"sharding_strategy": "FULL_SHARD"}
    >>> seen = {"sharding_strategy": "NO_SHARD", "n_params": 1000}
    >>> training_row(Trial(trial_id="a", workload={}, config=asked, observed=seen, state=State.COMPLETED))
    {'sharding_strategy': 'NO_SHARD', 'n_params': 1000}
    """
    row = {**trial.observed, **trial.workload, **trial.config}
    for parameter, fact in _observed_parameters(trial, observe):
        if fact not in trial.config and fact not in trial.workload:
            row.pop(fact, None)
        if _same_vocabulary(fact, trial.config[parameter], trial.observed[fact]):
            row[parameter] = trial.observed[fact]
    return row


def _row_with_trust(trial: Trial, observe: Mapping[str, str]) -> dict[str, Value]:
    """Return the facts of a trial, with the trust level of one that is not own as a category.

    Trials of others are of another machine or program, or wrong in a way that they share. Candidates are own.
    """
    row = training_row(trial, observe=observe)
    return row if trial.trust is Trust.OWN else {**row, TRUST: str(trial.trust)}


def config_key(config: Config) -> str:
    """Return a canonical text that two configs share exactly when they request the same.

    >>> config_key({"b": (1, 2), "a": 4.0}) == config_key({"a": 4, "b": (1, 2)})
    True
    """
    return json.dumps({name: _canonical(value) for name, value in config.items()}, sort_keys=True)


def _throughput(trial: Trial, objective: str) -> float | None:
    if trial.measurement is None or trial.state is State.PLANNED:
        return None
    return trial.throughput(objective)


def _observed_parameters(trial: Trial, observe: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return parameters of the config whose effect was observed, each with the name of the observed fact."""
    standard = {name: name for name in STANDARD_PARAMETERS}
    pairs = ((name, observe.get(name, standard.get(name, ""))) for name in trial.config)
    return [(name, fact) for name, fact in pairs if fact in trial.observed]


def _same_vocabulary(fact: str, requested: Value, observed: Value) -> bool:
    if fact in STANDARD_WORDS:
        known = STANDARD_WORDS[fact].union(RESHARD_SIZES if fact == "sharding_strategy" else ())
        return known.issuperset(_entries(requested))
    return {_kind(entry) for entry in _entries(requested)} == {_kind(entry) for entry in _entries(observed)}


def _entries(value: Value) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _kind(value: Scalar) -> type[bool | float | str]:
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float


def _canonical(value: Value) -> object:
    kind = type(value)
    if kind is str or kind is int:  # most values
        return value
    if isinstance(value, tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
