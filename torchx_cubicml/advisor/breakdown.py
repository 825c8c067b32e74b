"""Breakdown of configs: where the time of a step and the memory of a device go, by formulas calibrated on launches."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.first_launch import FirstLaunch
from torchx_cubicml.advisor.posterior import with_pinned_choices
from torchx_cubicml.advisor.trial_data import nearest_trials
from torchx_cubicml.predictors.features.device_specs import REFERENCE, find_hardware
from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.coverage import missing_facts
from torchx_cubicml.predictors.roofline.part_factors import part_factors
from torchx_cubicml.predictors.roofline.recommender_layout import tables_of_unknown_plan
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.records.objective_units import RATES
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.advisor.surrogates.base import TrainingData
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value

_GIB = float(1 << 30)
_MOST_LAUNCHES = 100  # to calibrate on: more change the constants little, and a user waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Estimated parts of one config's step time and memory, beside what its launches measured.

    Args:
        seconds: part -> seconds per step; they add up to the step. Empty where no formula covers the config.
        memory_gib: part -> GiB of the fullest device at its peak; they add up. Empty where no formula covers it.
        measured_s: seconds per step, median over the launches of the config; ``None`` if none was measured.
        measured_gib: peak memory of one process, likewise.
        measured_outside: share of the time between a step and the next one's first forward (loading data, logging),
            likewise: no formula knows it.
        hidden: part -> seconds per step of communication that computation hides: the step does not wait for it.
    """

    seconds: Mapping[str, float]
    memory_gib: Mapping[str, float]
    measured_s: float | None = None
    measured_gib: float | None = None
    measured_outside: float | None = None
    hidden: Mapping[str, float] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """Estimated seconds per step."""
        return sum(self.seconds.values())

    @property
    def peak_gib(self) -> float:
        """Estimated GiB of the fullest device at its peak."""
        return sum(self.memory_gib.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Launches that an estimate is calibrated on.

    Args:
        n_launches: their number; 0 for the formulas' default constants.
        are_own: whether they are of the workload itself.
        error: median of the relative errors of the calibrated formulas on them; ``None`` where none can be compared.
    """

    n_launches: int = 0
    are_own: bool = True
    error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdowns:
    """Breakdowns of several configs of a workload.

    Args:
        of: name of a config -> its breakdown; empty where no formula covers the workload.
        time: what the seconds are calibrated on.
        memory: what the memory is calibrated on.
        lacking: facts that the formulas need and the workload's launches do not tell; empty where they cover it.
        stand_in: device whose data sheet stands for an unknown one; empty where the device is known.
        unplanned: name of a config -> tables that it leaves to TorchRec's planner, whose choice no launch has shown.
            They are counted as spread evenly over the ranks. Configs without such tables are left out.
        first_launch: predictions with intervals; empty where launches of the workload itself calibrate the estimate.
    """

    of: Mapping[str, Breakdown]
    time: Basis = Basis()
    memory: Basis = Basis()
    lacking: tuple[str, ...] = ()
    stand_in: str = ""
    unplanned: Mapping[str, int] = field(default_factory=dict)
    first_launch: FirstLaunch = field(default_factory=FirstLaunch)

    @classmethod
    def estimate(cls, study: Study, configs: Mapping[str, Config]) -> Self:
        """Return the breakdowns of ``configs``, by formulas calibrated on the launches of the study.

        Launches of the workload itself are used; those of others, if none of its own is measured and covered.

        Args:
            study: fitted to the trials.
            configs: name -> complete config; the first is named in ``lacking``. At least one.
        """
        posterior = study.posterior
        rows = {name: posterior.rows.of(config) for name, config in configs.items()}
        roofline = Roofline()
        first = next(iter(rows.values()))
        if not roofline.explain(first):
            return cls(of={}, lacking=tuple(missing_facts(first)))
        launches, are_own = _launches(posterior.data)
        with one_thread():
            history, objective = _calibrate(roofline, posterior.data, launches)
            memory = _Memory.of(roofline, posterior.data, launches)
        n_launches = len(history.measured)
        first_launch = FirstLaunch()
        if not n_launches:
            first_launch = FirstLaunch.by_public_prior(rows)
        elif not are_own:
            first_launch = FirstLaunch.by_other_workloads(rows, roofline, history, objective=objective)
        launched = _by_config(posterior, posterior.data.own)
        steps = [_steps(trial, roofline, posterior.data) for trial in launches]
        return cls(
            of={
                name: Breakdown(
                    seconds=roofline.explain(row),
                    memory_gib=memory.parts(row),
                    measured_s=_median(
                        _steps(trial, roofline, posterior.data)[1]
                        for trial in launched.get(_key(posterior, config), ())
                    ),
                    measured_gib=_median(map(_peak_gib, launched.get(_key(posterior, config), ()))),
                    measured_outside=_median(map(_share_outside, launched.get(_key(posterior, config), ()))),
                    hidden=roofline.hidden(row),
                )
                for (name, config), row in zip(configs.items(), rows.values(), strict=True)
            },
            time=Basis(n_launches=n_launches, are_own=are_own, error=_error(steps) if n_launches else None),
            memory=Basis(n_launches=memory.n_launches, are_own=are_own, error=memory.error),
            stand_in="" if find_hardware(str(first.get("device", ""))) else REFERENCE.name,
            unplanned={name: count for name, row in rows.items() if (count := tables_of_unknown_plan(row))},
            first_launch=first_launch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """Memory formulas with factors fitted to recorded peaks."""

    roofline: Roofline
    factors: Mapping[str, float]
    n_launches: int
    error: float | None

    @classmethod
    def of(cls, roofline: Roofline, data: TrainingData, launches: Sequence[Trial]) -> Self:
        with_peak = [(trial, peak) for trial in launches if (peak := _peak_gib(trial)) is not None]
        if not with_peak:
            return cls(roofline=roofline, factors={}, n_launches=0, error=None)
        table = roofline.memory([_row(trial, data) for trial, _ in with_peak])
        parts: NDArray[np.float64] = np.column_stack(list(table.values())) / _GIB
        peaks = np.array([peak for _, peak in with_peak])
        covered = np.isfinite(parts).all(axis=1) & (parts.sum(axis=1) > 0.0)
        parts, peaks = parts[covered], peaks[covered]
        factors = part_factors(parts, peaks)
        pairs = zip((parts @ factors).tolist(), peaks.tolist(), strict=True)
        return cls(
            roofline=roofline,
            factors=dict(zip(table, factors.tolist(), strict=True)),
            n_launches=len(peaks),
            error=_error(list(pairs)),
        )

    def parts(self, row: Mapping[str, Value]) -> dict[str, float]:
        """Return part -> GiB of one row; empty where it is not covered."""
        parts = {name: float(size[0]) / _GIB for name, size in self.roofline.memory([row]).items()}
        if not np.isfinite(list(parts.values())).all():
            return {}
        return {name: size * self.factors.get(name, 1.0) for name, size in parts.items()}


def _launches(data: TrainingData) -> tuple[list[Trial], bool]:
    """Return the measured launches to calibrate on, and whether they are of the workload itself."""
    formulas = Roofline()

    def usable(trials: Iterable[Trial]) -> list[Trial]:
        measured = nearest_trials(
            (trial for trial in trials if trial.measurement is not None), data.workload, count=_MOST_LAUNCHES
        )
        return [trial for trial in measured if formulas.explain(_row(trial, data))]

    if own := usable(data.own):
        return own, True
    own_ids = {id(trial) for trial in data.own}
    others = usable(trial for trial in data.all_trials if id(trial) not in own_ids)
    return others, not others


def _calibrate(roofline: Roofline, data: TrainingData, launches: Sequence[Trial]) -> tuple[TrainingTable, str]:
    """Calibrate the formulas on ``launches``; return the table of these, and the unit that most are measured in."""
    histories = {name: TrainingTable.from_trials(launches, objective=name, observe=data.observe) for name in RATES}
    objective = max(histories, key=lambda name: len(histories[name].measured))
    if len(histories[objective].measured):
        roofline.fit(histories[objective], rng=np.random.default_rng(0))
    return histories[objective], objective


def _row(trial: Trial, data: TrainingData) -> dict[str, Value]:
    return training_row(trial, observe=data.observe)


def _key(posterior: Posterior, config: Config) -> Hashable:
    return identity(with_pinned_choices(posterior, config))


def _by_config(posterior: Posterior, trials: Iterable[Trial]) -> dict[Hashable, list[Trial]]:
    names = {parameter.name for parameter in posterior.space.parameters}
    found: dict[Hashable, list[Trial]] = {}
    for trial in trials:
        if trial.measurement is not None:
            config = {name: value for name, value in trial.config.items() if name in names}
            found.setdefault(_key(posterior, config), []).append(trial)
    return found


def _steps(trial: Trial, roofline: Roofline, data: TrainingData) -> tuple[float, float | None]:
    """Return the seconds per step of a launch, as estimated and as measured; ``None`` where that is unknown."""
    row = _row(trial, data)
    estimated = sum(roofline.explain(row).values())
    measurement = trial.measurement
    if measurement is None or measurement.steps_per_second is not None:
        return estimated, 1.0 / measurement.steps_per_second if measurement and measurement.steps_per_second else None
    tokens = estimated * float(roofline.tokens_per_second([row])[0])
    length = row.get("seq_len")
    samples = tokens / length if isinstance(length, int | float) and length > 0 else np.nan
    if not np.isfinite(tokens):
        samples = estimated * float(roofline.recommenders_.samples_per_second([row])[0])
    for work, per_second in ((tokens, measurement.tokens_per_second), (samples, measurement.samples_per_second)):
        if per_second is not None and np.isfinite(work):
            return estimated, float(work / per_second)
    return estimated, None


def _peak_gib(trial: Trial) -> float | None:
    return trial.measurement.peak_gib if trial.measurement is not None else None


def _share_outside(trial: Trial) -> float | None:
    return trial.measurement.share_outside_steps if trial.measurement is not None else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _error(pairs: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the median of the relative errors of estimates, each beside what was measured."""
    return _median(abs(estimate / measured - 1.0) for estimate, measured in pairs if measured and estimate)
