"""Suggestion for a launch: a config, its predicted throughput, and the reason."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.objective_units import OBJECTIVES, PER_COST, SOONEST_DONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Config

_MOST_ROUNDS = 1_000_000
_OF_TUNE = re.compile(r"(launch-[0-9a-f]+)-\d+")  # the id of a tune's launch


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTrial:
    """Nearest neighbour of a suggestion: a measured trial with a similar config.

    Args:
        trial_id: id of the trial; where several have one config, of the median one.
        differs: its values that differ from the suggested ones, in words.
        throughput: measured throughput of the whole job, in the unit of the objective.
        uncertainty: standard deviation of its logarithm, from the run itself; 0.0 where unknown.
    """

    trial_id: str
    differs: str
    throughput: float
    uncertainty: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """Config proposed for a launch, with its predicted throughput and the reason.

    Args:
        config: complete config, of literals of the space (or of the user's own command).
        throughput: predicted median of the whole job, in the unit of the objective; ``None`` where nothing is known.
        low: lower end of the 80 % interval of the true value.
        high: upper end of that interval.
        probability_to_fit: probability that the config fits in memory, 0..1.
        reason: reason in words.
        n_trials: number of ended trials of this workload behind the prediction.
        baseline_throughput: predicted median of the user's own config.
        gain: median of the ratio of the two; ``None`` where either is unknown.
        gain_low: lower end of its 80 % interval.
        gain_high: upper end of that interval.
        doubt: measurement uncertainty: standard deviation of the logarithm of throughput, as the runs report it. It is
            the lowest over the runs of this config or of the user's own, whichever is larger; 0.0 where unknown.
        n_baseline: measurements of the user's own config, on which the gain rests.
        objective: unit of the throughputs where that is none of ``OBJECTIVES``; ``None`` for those of the whole job.
        time_to_done: predicted seconds of each part until the job is done: ``OVERHEADS``, as far as they are known, and
            ``STEPS_S``; ``None`` for other objectives than ``soonest_done``.
        round_number: round of a tune that fits its predictor once a round, >= 1; ``None`` for other launches.
        nearest: up to three trials of this workload for comparison, the most similar first; only set by ``suggest``.
    """

    config: Config
    throughput: float | None
    low: float | None
    high: float | None
    probability_to_fit: float
    reason: str
    n_trials: int
    baseline_throughput: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    doubt: float = 0.0
    n_baseline: int = 0
    objective: str | None = None
    time_to_done: Mapping[str, float] | None = None
    round_number: int | None = None
    nearest: tuple[NearTrial, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the suggestion as JSON values."""
        config = {name: list(value) if isinstance(value, tuple) else value for name, value in self.config.items()}
        return {**asdict(self), "config": config, "nearest": [asdict(each) for each in self.nearest]}

    def _repr_html_(self) -> str:
        """Return the config with its prediction and reason, for a notebook."""
        from torchx_cubicml.records.notebook import fact_rows, section_html, table_html

        config = table_html(("parameter", "value"), fact_rows(self.config))
        prediction = table_html((), _prediction_rows(self))
        return section_html("Suggested config", config, prediction, self.reason)

    def promise(self) -> dict[str, object]:
        """Return the part stored with a launch, as JSON values: the prediction and the reason."""
        unset = {name for name in ("objective", "time_to_done", "round_number") if getattr(self, name) is None}
        left_out = {"config", "nearest", *unset}
        return {name: value for name, value in self.to_json().items() if name not in left_out}


def _prediction_rows(suggestion: Suggestion) -> list[tuple[str, str]]:
    """Return the prediction of a suggestion as rows of a table; what is unknown is left out."""
    gain = _with_interval(suggestion.gain, suggestion.gain_low, suggestion.gain_high, ".3g", "x")
    rows = [
        _throughput_row(suggestion),
        ("over your own config", gain),
        ("probability to fit in memory", f"{suggestion.probability_to_fit:.0%}"),
        ("ended trials behind it", str(suggestion.n_trials)),
    ]
    return [(name, text) for name, text in rows if text]


def _throughput_row(suggestion: Suggestion) -> tuple[str, str]:
    value, low, high = suggestion.throughput, suggestion.low, suggestion.high
    if suggestion.objective != SOONEST_DONE:
        name = (suggestion.objective or "throughput of the whole job, per second").replace("_", " ")
        return name, _with_interval(value, low, high, ",.6g")
    longest, middle, shortest = (1.0 / each if each else None for each in (low, value, high))
    return "until the job is done", _with_interval(middle, shortest, longest, ",.6g", " s")


def _with_interval(value: float | None, low: float | None, high: float | None, form: str, unit: str = "") -> str:
    """Return a prediction as text; empty without one.

    >>> _with_interval(1.5, 1.25, 1.75, ".3g", "x"), _with_interval(1200.0, None, None, ",.6g")
    ('1.5x (80 % interval: 1.25x to 1.75x)', '1,200')
    """
    if value is None:
        return ""
    middle = f"{value:{form}}{unit}"
    return (
        middle
        if low is None or high is None
        else f"{middle} (80 % interval: {low:{form}}{unit} to {high:{form}}{unit})"
    )


def promised_round(promise: Mapping[str, object] | None) -> int | None:
    """Return the round of a launch, from 1 to a million, from the prediction stored with it; ``None`` without one.

    >>> promised_round({"round_number": 2}), promised_round(None)
    (2, None)
    """
    number = (promise or {}).get("round_number")
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return number if 1 <= number <= _MOST_ROUNDS else None


def tune_of(launch_id: str) -> str:
    """Return the common beginning of the ids of one tune's launches; empty for a launch of no tune.

    >>> tune_of("launch-9f2c61d07e1b4a55-0003"), tune_of("import-9f2c61d07e1b4a55")
    ('launch-9f2c61d07e1b4a55', '')
    """
    found = _OF_TUNE.fullmatch(launch_id)
    return found[1] if found else ""


def promised_throughput(promise: Mapping[str, object] | None, objective: str) -> float | None:
    """Return the predicted throughput stored with a launch; ``None`` without a positive one in that unit.

    >>> promised_throughput({"throughput": 9.0}, "tokens_per_second")
    9.0
    >>> promised_throughput({"throughput": 9.0, "objective": "tokens_per_currency"}, "tokens_per_second")
    >>> promised_throughput({"throughput": 9.0}, "soonest_done")
    >>> promised_throughput({"throughput": 9.0, "objective": "soonest_done"}, "soonest_done")
    9.0
    """
    given = promise or {}
    value, unit = given.get("throughput"), given.get("objective")
    if unit != (None if objective in OBJECTIVES else objective):
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of a foreign store
        return None


def promised_objective(promise: Mapping[str, object] | None) -> str | None:
    """Return the objective per cost that a prediction is in; ``None`` for a throughput of the whole job.

    >>> promised_objective({"throughput": 9.0, "objective": "tokens_per_currency"})
    'tokens_per_currency'
    """
    unit = (promise or {}).get("objective")
    return unit if isinstance(unit, str) and unit in PER_COST else None
