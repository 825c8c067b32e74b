"""Comparison of the measured launches of two configs: the gain with its interval, and why it is not sure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import RecordError
from torchx_cubicml.history.same_training import global_batch
from torchx_cubicml.launch.messages import interval_text, per_cost_text
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.measurement_error import (
    FEWEST_TO_CLAIM,
    LEVEL,
    SURE,
    ErrorModel,
    Gain,
    Launches,
    by_time,
)
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config

_OLD_LEVEL = 0.95  # of the intervals that older releases recorded
_IN_ERRORS = 1.88  # a difference of fewer standard errors may come from the launches' own errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """All measurements of one config on one workload.

    Args:
        config: requested config.
        throughputs: throughput of the whole job, in the objective's unit, in the order of the trials; at least one.
        uncertainties: standard deviation of the logarithm of each, as its run reported it; empty if all are unknown.
        time_to_done: median seconds of each part until a job is done; empty for other objectives.
        global_batch: global batch size of all of them; ``None`` if unknown, or if it varied.
    """

    config: Config
    throughputs: tuple[float, ...]
    uncertainties: tuple[float, ...] = ()
    time_to_done: Mapping[str, float] = field(default_factory=dict)
    global_batch: int | None = None

    def __post_init__(self) -> None:
        if not self.throughputs:
            raise RecordError("repeats need at least one measurement")
        if self.uncertainties and len(self.uncertainties) != len(self.throughputs):
            raise RecordError(f"{len(self.throughputs)} measurements have {len(self.uncertainties)} uncertainties")

    @classmethod
    def of(cls, config: Config, trials: Iterable[Trial], *, objective: str) -> Self:
        """Collect the repeats of one config, without trials that lack a throughput in the unit of ``objective``.

        Raises:
            RecordError: no trial is left.
        """
        measured = [each for each in trials if each.measurement is not None]
        pairs = [
            (value, each.uncertainty(objective))
            for each in measured
            if (value := each.throughput(objective)) is not None
        ]
        return cls(
            config=config,
            throughputs=tuple(value for value, _ in pairs),
            uncertainties=tuple(uncertainty for _, uncertainty in pairs),
            time_to_done=_median_parts(measured),
            global_batch=shared_batch(measured),
        )

    @property
    def middle(self) -> float:
        """Median throughput."""
        return median(self.throughputs)

    @property
    def error(self) -> float:
        """Standard deviation of the logarithm of all launches together, as they report it; 0 if unknown."""
        if not self.uncertainties or min(self.uncertainties) == 0.0:
            return 0.0
        return 1.0 / math.sqrt(sum(each**-2 for each in self.uncertainties))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Gain of the best config over the baseline, with its interval.

    Args:
        objective: unit of the throughputs.
        baseline: measurements of the user's own config.
        best: measurements of the other config.
        gain: median of the posterior of the ratio, best over baseline.
        gain_low: lower end of the interval.
        gain_high: upper end of the interval.
        faster: probability that the gain is above one; ``None`` in results of older releases.
        launches_lacking: launches until each side is measured twice: before, no gain can be claimed.
    """

    objective: str
    baseline: Repeats
    best: Repeats
    gain: float
    gain_low: float
    gain_high: float
    faster: float | None = None
    launches_lacking: int = 0

    @property
    def measured(self) -> float:
        """Ratio of the median measurements: what was seen, not what is true."""
        return self.best.middle / self.baseline.middle

    @property
    def claims_gain(self) -> bool:
        """Return whether each side was measured at least twice and the best is surely faster."""
        is_sure = self.gain_low > 1.0 if self.faster is None else self.faster > SURE
        return is_sure and not self.launches_lacking

    @property
    def label(self) -> str:
        """Name of the best config: a gain is claimed for the confirmed one alone."""
        return "confirmed" if self.claims_gain else "not confirmed"

    @property
    def doubt(self) -> str:
        """Reason why no gain is claimed, in words."""
        if self.launches_lacking:
            return f"it takes {_more(self.launches_lacking)} of the two"
        if self.gain_high < 1.0:
            return "the other config is slower"
        sides = {"your config": self.baseline, "the other config": self.best}
        whose, side = max(sides.items(), key=lambda pair: pair[1].error)
        if abs(math.log(self.gain)) < _IN_ERRORS * math.hypot(self.baseline.error, self.best.error):
            width = interval_text(side.error)
            return f"{whose} is known only {'to ' if width.startswith('±') else ''}{width}"
        text = "its launches and yours vary from run to run"
        if not self.faster or self.gain_low <= 1.0:
            return text
        return f"{text} (faster with {math.floor(100 * self.faster)} %, not {100 * SURE:.0f} %)"

    def __str__(self) -> str:
        level = LEVEL if self.faster is not None else _OLD_LEVEL
        span = f"({level:.0%} interval: {self.gain_low:.2f}x to {self.gain_high:.2f}x)".replace("%", " %")
        if self.claims_gain:
            return " ".join(filter(None, (f"Gain {self.gain:.2f}x", per_cost_text(self.objective), span)))
        if self.launches_lacking:
            return f"Ratio {self.gain:.2f}x; {too_few_text(self.launches_lacking)}"
        return f"Ratio {self.gain:.2f}x {span}; no gain is claimed: {self.doubt}"


def shared_batch(trials: Iterable[Trial]) -> int | None:
    """Return the global batch size of all launches; ``None`` where one does not tell it, or they differ."""
    found = {each.fact("global_batch_size") or global_batch(each.workload, each.config) for each in trials}
    (batch,) = found if len(found) == 1 else (None,)
    return batch if is_count(batch) else None


def _median_parts(trials: Iterable[Trial]) -> dict[str, float]:
    """Return the median seconds of each part until a job is done."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for each in trials:
        for name, value in each.time_to_done.items():
            seconds[name].append(value)
    return {name: median(values) for name, values in seconds.items()}


def launches_lacking(*counts: int) -> int:
    """Return the launches until each of two configs, measured so many times, is measured often enough for a claim."""
    return sum(max(0, FEWEST_TO_CLAIM - count) for count in counts)


def too_few_text(lacking: int) -> str:
    """Return the sentence on a comparison for which so many launches lack; a small gain takes more than these."""
    return f"no gain is claimed: too few measurements (it takes {_more(lacking)})"


def _more(launches: int) -> str:
    return f"at least {launches} more launch{'es' if launches > 1 else ''}"


def least_confirmed(launch: Trial, repeats: int, *, objective: str) -> float:
    """Return about the least ratio that so many launches of each config, in turn and as uncertain, can confirm."""
    launches, _ = Launches.of([launch], objective=objective, key=lambda _: "")
    return ErrorModel.unknown().least_gain(launches, repeats)


def compare(baseline: Repeats, best: Repeats, gain: Gain, *, objective: str, lacking: int | None = None) -> Comparison:
    """Return the comparison of ``best`` with ``baseline``, the user's own config.

    Args:
        baseline: measurements of the user's own config.
        best: measurements of the other config.
        gain: posterior of their ratio.
        objective: unit of the throughputs.
        lacking: launches until a gain can be claimed; by default, until each side was measured twice.
    """
    if lacking is None:
        lacking = launches_lacking(len(baseline.throughputs), len(best.throughputs))
    low, high = gain.interval
    return Comparison(
        objective=objective,
        baseline=baseline,
        best=best,
        gain=gain.quantile(0.5),
        gain_low=low,
        gain_high=high,
        faster=gain.probability_above(0.0),
        launches_lacking=lacking,
    )


def compared(
    own: Config, best: Config, trials: Iterable[Trial], *, objective: str, elsewhere: Iterable[Trial] = ()
) -> Comparison | None:
    """Compare two configs by the measured launches of a workload; ``None`` where one of them was not measured.

    The first measurement of ``best`` does not count where others competed: it was chosen for being high.

    Args:
        own: the user's own config.
        best: the other one.
        trials: of the workload; those of other configs tell of the machine.
        objective: name of the throughput.
        elsewhere: trials of other workloads, which tell of the machine, too.
    """
    trials = sorted(_on_one_device(trials), key=by_time)
    launches, numbers = Launches.of(trials, objective=objective, key=lambda trial: config_key(trial.config))
    names = [config_key(each) for each in (own, best)]
    if not {*names} <= numbers.keys():
        return None
    ran = [[each for each in trials if config_key(each.config) == name] for name in names]
    baseline, other = (Repeats.of(each, of, objective=objective) for each, of in zip((own, best), ran, strict=True))
    if names[0] == names[1]:
        return compare(baseline, other, Gain.certain(), objective=objective)
    counts = [len(baseline.throughputs), len(other.throughputs) - (len(numbers) > len(names))]
    if 0 < counts[1] < len(other.throughputs):
        first = next(place for place, each in enumerate(ran[1]) if each.throughput(objective) is not None)
        other = Repeats.of(best, ran[1][first + 1 :], objective=objective)
    first_of, second = (numbers[name] for name in names)
    gain = ErrorModel.of(elsewhere, objective=objective).gain(launches.compared(second, first_of), second, first_of)
    return compare(baseline, other, gain, objective=objective, lacking=launches_lacking(*counts))


def fastest_measured(trials: Sequence[Trial], *, objective: str) -> Trial | None:
    """Return a trial of the config of highest median throughput; ``None`` if no config was measured.

    Args:
        trials: of one workload.
        objective: name of the throughput.
    """
    groups: defaultdict[object, list[tuple[float, Trial]]] = defaultdict(list)
    for trial in _on_one_device(trials):
        value = trial.throughput(objective)
        if value is not None:
            groups[config_key(trial.config)].append((value, trial))
    best = max(groups.values(), key=lambda group: median(value for value, _ in group), default=None)
    return max(best, key=lambda pair: pair[1].started_at)[1] if best is not None else None


def _on_one_device(trials: Iterable[Trial]) -> list[Trial]:
    """Return the launches of a config; where one config ran on several devices, those on the device of the latest."""
    trials = [trial for trial in trials if trial.config]
    devices: dict[object, set[object]] = {}
    for trial in trials:
        devices.setdefault(config_key(trial.config), set()).update({trial.observed.get("device")} - {None})
    if all(len(each) < 2 for each in devices.values()):
        return trials
    told = [trial for trial in trials if trial.observed.get("device") is not None]
    kept = {None, max(told, key=lambda trial: trial.ended_at or trial.started_at).observed["device"]}
    return [trial for trial in trials if trial.observed.get("device") in kept]


def recorded_comparison(
    trials: Sequence[Trial], *, objective: str, baselines: Collection[str] = (), elsewhere: Sequence[Trial] = ()
) -> Comparison | None:
    """Compare the fastest recorded config with the user's own; ``None`` where either is not known or not measured.

    Args:
        trials: of one workload.
        objective: name of the throughput.
        baselines: ids of launches of the user's own config. Without any that was measured, it is the config of the
            latest measured launch that ran as typed.
        elsewhere: trials of other workloads, for the noise from run to run.
    """
    own = _own_config(trials, objective, baselines)
    best = fastest_measured(trials, objective=objective) if own is not None else None
    if best is None or own is None:
        return None
    return compared(own, best.config, trials, objective=objective, elsewhere=elsewhere)


def _own_config(trials: Sequence[Trial], objective: str, baselines: Collection[str]) -> Config | None:
    measured = [trial for trial in trials if trial.config and trial.throughput(objective) is not None]
    tuned = [trial for trial in measured if trial.launch_id and trial.launch_id in baselines]
    typed = tuned or [trial for trial in measured if trial.origin is Origin.USER]
    return max(typed, key=lambda trial: trial.started_at).config if typed else None
