"""Posterior of throughput and memory fit after the trials, with its incumbent (the best known config)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from torchx_cubicml.advisor.launch_overhead import LaunchOverhead
from torchx_cubicml.advisor.surrogates.base import MIN_TRANSFER, JointSurrogate, TrainingData
from torchx_cubicml.advisor.surrogates.cross_workload import CrossWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.per_cost import per_cost
from torchx_cubicml.advisor.surrogates.select import fit_surrogate
from torchx_cubicml.advisor.surrogates.soonest_done import JobTiming, soonest_done
from torchx_cubicml.advisor.surrogates.transfer_prior import roofline_covers
from torchx_cubicml.advisor.trial_data import (
    ConfigOutcome,
    constant_values,
    drop_leaking_facts,
    narrowed,
    outcomes_by_config,
    pinned_choices,
    select_trials,
    with_choices,
)
from torchx_cubicml.history.hook_refusals import hook_refusals
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS, Prediction
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.features.rows import FactRows
from torchx_cubicml.predictors.measurement_error import FEWEST_TO_CLAIM, ErrorModel, Gain, Launches
from torchx_cubicml.predictors.memory.dominance import DominanceRules, at_least
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.records.memory_failure import proves_too_large
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.neighbourhood import Neighbourhood
from torchx_cubicml.searchers.scored_rows import as_legal
from torchx_cubicml.space.encoding import distinct_rows, drawn_rows, vectors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import Surrogate
    from torchx_cubicml.advisor.trial_data import CleanTrials
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value, Workload
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedConfigs:
    """The measured configs, each list in order of descending posterior mean.

    Args:
        trusted: the incumbent and those after it.
        doubted: outliers, slowed down by something else in each measurement; empty where nothing is trusted.
    """

    trusted: tuple[Config, ...]
    doubted: tuple[Config, ...]


def ranked(posterior: Posterior) -> RankedConfigs:
    """Return the measured configs of a workload, ranked by posterior mean; outliers apart."""
    measured = posterior.measured()
    if not measured:
        return RankedConfigs(trusted=(), doubted=())
    order = np.argsort(-posterior.estimates(measured).logarithm, kind="stable").tolist()
    outliers = posterior.outliers(measured).tolist()
    trusted = tuple(measured[index] for index in order if not outliers[index])
    doubted = tuple(measured[index] for index in order if outliers[index])
    return RankedConfigs(trusted=trusted, doubted=doubted) if trusted else RankedConfigs(trusted=doubted, doubted=())


def with_pinned_choices(posterior: Posterior, config: Config) -> Config:
    """Return ``config`` as the posterior records it: parameters that are kept have their one pinned choice."""
    kept = {*posterior.ineffective, *posterior.refused}
    pinned = {item.name: item.choices[0] for item in posterior.space.parameters if item.name in kept}
    return with_choices(config, pinned)


# Configs at which a Thompson sample is conditioned: random ones, and two variations of each of the fastest.
_RANDOM_ANCHORS, _FASTEST_VARIED = 60, 60
_Measurements: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"  # throughputs of one config, uncertainties
_WITHOUT_FORMULAS = "boosting"  # predictor of a quantity that the step-time formulas do not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Posterior of one workload's configs, rebuilt from the trials each time.

    Args:
        space: bound to the workload, without the choices of parameters that have no effect on it.
        ineffective: parameters that have no effect, as observed and measured.
        refused: parameters that a hook cannot set in this program.
        rows: facts of the workload known before a launch, combined with each config.
        outcomes: identity of a config -> its outcome.
        n_trials: ended trials of this workload of which any parameter is known.
        noise: standard deviation of the logarithm of throughput from run to run.
        surrogate: fitted to the trials of this workload and others.
        has_transfer_prior: whether other workloads, or the roofline model, predict how configs of this space compare.
        advice: what is left out of the trials or the memory rules, and why, one line each.
        order: of the configs by the memory that they need.
        data: trials that the surrogate is fitted to.
        launches: measured launches of the configs of ``outcomes``, with their errors.
        numbers: identity of a config -> its number in ``launches``.
        timing: of a job of known work; ``None`` for other objectives than ``soonest_done``.
    """

    space: SearchSpace
    ineffective: tuple[str, ...]
    refused: tuple[str, ...]
    rows: FactRows
    outcomes: Mapping[Hashable, ConfigOutcome]
    n_trials: int
    noise: float
    surrogate: Surrogate
    has_transfer_prior: bool
    advice: tuple[str, ...]
    order: MemoryOrder
    data: TrainingData
    launches: Launches
    numbers: Mapping[Hashable, int]
    timing: JobTiming | None = None

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        *,
        workload: Workload,
        current: Config,
        trials: Iterable[Trial],
        rng: np.random.Generator,
        predictor: str = DEFAULT_PREDICTOR,
    ) -> Self:
        """Return the posterior after ``trials``.

        ``space`` is bound to ``workload``; ``predictor`` is as in ``TrainingData``, or the default where it is unknown.
        """
        chosen = select_trials(trials, space=space, workload=workload)
        refusals = hook_refusals(space, current, chosen.own)
        space = refusals.without_values(space)
        clean = drop_leaking_facts(chosen, space=space)
        pinned = pinned_choices(space, current, clean.idle | refusals.parameters.keys())
        pinned_space = narrowed(space, pinned)
        outcomes = outcomes_by_config(pinned_space, chosen.own, pinned)
        config_of = {name: key for key, outcome in outcomes.items() for name in outcome.trial_ids}

        def key_of(trial: Trial) -> Hashable | None:
            return config_of.get(trial.trial_id, config_key(trial.config) if trial.config else None)

        launches_in = partial(Launches.of, chosen.own, key=key_of)
        machine = ErrorModel.of(chosen.others, objective=space.learned)
        launches, numbers = launches_in(objective=space.objective)
        order = MemoryOrder.of_space(pinned_space.parameters, workload=workload, own=with_choices(current, pinned))
        data = _training_data(clean, space=pinned_space, workload=workload, predictor=predictor, order=order)
        is_repeated = any(len(outcome.measured) > 1 for outcome in outcomes.values())
        noise = machine.usual_noise(launches_in(objective=space.learned)[0]) if is_repeated else None
        data = replace(data, machine=machine, noise=noise)
        varied = {name for name, choices in data.tuned.items() if len(choices) > 1}
        timing = JobTiming(job=space.job, overhead=LaunchOverhead.of(chosen.own)) if space.job is not None else None
        return cls(
            space=pinned_space,
            ineffective=tuple(sorted(pinned.keys() - refusals.parameters.keys())),
            refused=tuple(sorted(pinned.keys() & refusals.parameters.keys())),
            rows=FactRows(
                pinned_space,
                facts={**clean.known_facts, **space.facts, **workload},
                instead=constant_values(chosen.own, clean.idle, clean.observe),
            ),
            outcomes=outcomes,
            n_trials=sum(trial.state.ended for trial in data.own),
            noise=machine.noise(launches),
            surrogate=_of_objective(fit_surrogate(data, rng=rng), space, timing),
            has_transfer_prior=_are_informative(chosen.others, varied)
            or (data.is_per_second and roofline_covers(data.own)),
            advice=(*refusals.texts(), *chosen.notes, *_disproved(data, order)),
            order=order,
            data=data,
            timing=timing,
            launches=launches,
            numbers=numbers,
        )

    def forecast(self, configs: Sequence[Config]) -> Prediction:
        """Return the surrogate's forecast of ``configs``."""
        return self.surrogate.forecast(self._rows(configs))

    def forecast_at(self, vectors: NDArray[np.intp]) -> Prediction:
        """Return the forecast of the configs at legal rows of choice indices, ``[n, n_dimensions]``."""
        return self.surrogate.forecast(self.rows.at(vectors))

    def ensemble(self, *, one: bool) -> list[Self]:
        """Return one posterior per member of the surrogate's ensemble; see ``Surrogate.ensemble``."""
        return [replace(self, surrogate=each) for each in self.surrogate.ensemble(one=one)]

    def fantasize(self, configs: Sequence[Config]) -> Self:
        """Return the posterior as if ``configs`` were under way and measured at their means (fantasy observations)."""
        rows = (np.array(self.space.encode(config), dtype=np.intp).tobytes() for config in configs)
        under_way = {
            identity(config): ConfigOutcome(
                config=config, row=row, measured=(), out_of_memory=False, open=True, failed=False
            )
            for config, row in zip(configs, rows, strict=True)
        }
        relaunched = {key: replace(self.outcomes[key], open=True) for key in self.outcomes.keys() & under_way.keys()}
        return replace(
            self,
            surrogate=self.surrogate.fantasize(self._rows(configs)),
            outcomes={**under_way, **self.outcomes, **relaunched},
        )

    def by_predictor(self, name: str, *, rng: np.random.Generator) -> Self:
        """Return the posterior of one predictor alone, a key of ``PREDICTORS``, fitted to all workloads."""
        surrogate = CrossWorkloadSurrogate.of(replace(self.data, predictor=name), rng=rng)
        return replace(self, surrogate=_of_objective(surrogate, self.space, self.timing))

    def optimistic(self) -> Self:
        """Return the posterior with an optimistic prior mean, for search only; see ``Surrogate.optimistic``."""
        return replace(self, surrogate=self.surrogate.optimistic())

    def sample_function(self, rng: np.random.Generator) -> Callable[[NDArray[np.intp]], Prediction]:
        """Return ``forecast_at`` of one function sampled from the posterior (Thompson sample)."""
        moves = Neighbourhood(self.space.dimensions)
        around = vectors_of(self.space, self.fastest(_FASTEST_VARIED))
        near = as_legal(self.space, np.vstack([moves.mixed(around, rng), moves.mutated(around, rng)]))
        anchors = np.vstack([near[np.sort(distinct_rows(near)[0])], drawn_rows(self.space, _RANDOM_ANCHORS, rng=rng)])
        sampled = self.surrogate.sample_function(self.rows.at(anchors), rng=rng)
        return lambda vectors: sampled.forecast(self.rows.at(vectors))

    def sample(self, configs: Sequence[Config], *, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return joint samples of the logarithms of true throughput of a few configs, ``[count, n]``.

        Each config must be predicted or measured.
        """
        if isinstance(self.surrogate, JointSurrogate):
            return self.surrogate.sample(self._rows(configs), count=count, rng=rng)
        estimates = self.estimates(configs)
        return estimates.logarithm + estimates.spread * rng.standard_normal((count, len(configs)))

    def _rows(self, configs: Sequence[Config]) -> list[dict[str, Value]]:
        return [self.rows.of(config) for config in configs]

    def estimates(self, configs: Sequence[Config]) -> Prediction:
        """Return the posterior of each config's true throughput, after its own measurements."""
        if not configs:
            return Prediction.unknown(0)
        records = [self.outcomes.get(identity(config)) for config in configs]
        is_joint = isinstance(self.surrogate, JointSurrogate)
        measured = [(each.measured, each.uncertainties) if each and not is_joint else ((), ()) for each in records]
        return _updated(self.forecast(configs), measured, noise=self.noise)

    def measured_gain(self, config: Config, over: Config) -> Gain | None:
        """Return the gain of a config over another by their own measurements; ``None`` where these do not decide.

        They decide once each config was measured twice, beside the measurement that chose it.
        """
        best, own = (self.numbers.get(identity(each), -1) for each in (config, over))
        launches = self.launches.compared(best, own)
        if best == own or min(int((launches.config == each).sum()) for each in (best, own)) < FEWEST_TO_CLAIM:
            return None
        return self.data.machine.gain(launches, best, own)

    def gains(self, configs: Sequence[Config], over: Config) -> Prediction:
        """Return the posterior of the ratio of each config's true throughput to that of ``over``.

        NaN where either is unknown or ``over`` runs out of memory. Errors that two configs share cancel out, so the
        ratio of similar configs is more certain than either throughput.
        """
        estimates, record = self.estimates([*configs, over]), self.outcomes.get(identity(over))
        if np.isnan(estimates.logarithm[-1]) or (record is not None and record.out_of_memory):
            return Prediction.unknown(len(configs))
        if isinstance(self.surrogate, JointSurrogate):
            gains = self.surrogate.ratios(self._rows(configs), self._rows([over])[0])
        else:
            gains = Prediction(
                logarithm=estimates.logarithm[:-1] - estimates.logarithm[-1],
                spread=np.hypot(estimates.spread[:-1], estimates.spread[-1]),
            )
        same = np.array([identity(config) == identity(over) for config in configs], dtype=np.bool_)
        return Prediction(logarithm=np.where(same, 0.0, gains.logarithm), spread=np.where(same, 0.0, gains.spread))

    def without(self, config: Config) -> Prediction:
        """Return the prediction of a config's true throughput from the measurements of others alone.

        Raises:
            TypeError: the surrogate cannot leave a measurement out.
        """
        if not isinstance(self.surrogate, JointSurrogate):
            raise TypeError("only a joint surrogate can leave a measurement out")
        return self.surrogate.without(self._rows([config])[0])

    def fastest(self, count: int) -> list[Config]:
        """Return the ``count`` configs of ``measured`` with the highest measurements, the highest first."""
        ran = [record for record in self.outcomes.values() if record.measured and record.can_run]
        ran.sort(key=lambda record: (-max(record.measured), record.row))
        return [record.config for record in ran[:count]]

    def measured(self) -> list[Config]:
        """Return the configs of the space that were measured and can run."""
        return [record.config for record in self.outcomes.values() if record.measured and record.can_run]

    def outliers(self, configs: Sequence[Config]) -> NDArray[np.bool_]:
        """Return whether configs are outliers, slowed down by something else in each measurement, ``[n]``."""
        return self.surrogate.outliers(self._rows(configs))

    def is_decided(self, config: Config) -> bool:
        """Return whether ``config`` is decided: another launch of it would add nothing."""
        record = self.outcomes.get(identity(config))
        return record is not None and record.is_decided

    def had_error(self, config: Config) -> bool:
        """Return whether a launch of ``config`` ever ended with an error or in an unknown state."""
        record = self.outcomes.get(identity(config))
        return record is not None and record.had_error

    def decided_rows(self) -> frozenset[bytes]:
        """Return the decided rows of choice indices, as ``ConfigOutcome.row``."""
        return frozenset(record.row for record in self.outcomes.values() if record.is_decided)

    def at_least(self, configs: Sequence[Config], config: Config) -> NDArray[np.bool_]:
        """Return whether configs are known to need at least as much memory as ``config``, ``[n]``."""
        return at_least(self._rows(configs), self.rows.of(config), order=self.order)

    @property
    def n_tried(self) -> int:
        """Number of configs of the space with a launch that was not broken off."""
        return sum(record.tried for record in self.outcomes.values())

    @property
    def n_out_of_memory(self) -> int:
        """Number of configs of the space that ran out of memory."""
        return sum(record.out_of_memory for record in self.outcomes.values())


def _of_objective(surrogate: Surrogate, space: SearchSpace, timing: JobTiming | None) -> Surrogate:
    """Return the surrogate of the space's objective, from one of throughput."""
    return soonest_done(per_cost(surrogate, objective=space.objective, prices=space.prices), timing)


def _updated(predicted: Prediction, measured: Sequence[_Measurements], *, noise: float) -> Prediction:
    """Return the posterior from a prediction and measurements, weighted by precision; NaN where there is neither.

    Args:
        predicted: prior of the true values, from the surrogate.
        measured: throughputs of each config, and their uncertainties, ``[n]``; there may be none.
        noise: standard deviation of the logarithm from run to run, > 0, added to each uncertainty in quadrature.
    """
    logarithm, spread = predicted.logarithm.copy(), predicted.spread.copy()
    for index, (values, uncertainties) in enumerate(measured):
        if not values:
            continue
        weights = [1.0 / (noise**2 + each**2) for each in uncertainties]
        centre, precision = np.average(np.log(values), weights=weights), sum(weights)
        if np.isfinite(logarithm[index]):
            prior = max(spread[index], 1e-6) ** -2
            centre, precision = np.average([centre, logarithm[index]], weights=[precision, prior]), precision + prior
        logarithm[index], spread[index] = centre, precision**-0.5
    return replace(predicted, logarithm=logarithm, spread=spread)


def _training_data(
    clean: CleanTrials, *, space: SearchSpace, workload: Workload, predictor: str, order: MemoryOrder
) -> TrainingData:
    """Return the training data of the surrogate: the clean trials, and what is compared and tuned."""
    tuned = {item.name: item.choices for item in space.parameters if item.derive is None}
    objective = space.learned
    predictor = predictor if predictor in PREDICTORS else DEFAULT_PREDICTOR
    return TrainingData(
        all_trials=clean.trials,
        own=[trial for trial in clean.own if _has_config(trial, tuned)],
        objective=objective,
        observe=clean.observe,
        order=order,
        tuned=tuned,
        noise=None,
        workload=workload,
        predictor=predictor if objective in OBJECTIVES else _WITHOUT_FORMULAS,
    )


def _disproved(data: TrainingData, order: MemoryOrder) -> list[str]:
    """Return the orders of memory that the workload's own launches disprove, one line each."""
    if not any(map(proves_too_large, data.own)):
        return []  # saves the time of making the table
    return [each.text() for each in DominanceRules.of_history(data.own_history(), order).contradictions]


def _are_informative(others: Iterable[Trial], names: set[str]) -> bool:
    """Return whether enough measured trials of other workloads have a value for each of ``names``."""
    informative = (trial for trial in others if trial.measurement is not None and names <= trial.config.keys())
    return sum(1 for _ in islice(informative, MIN_TRANSFER)) == MIN_TRANSFER


def _has_config(trial: Trial, names: Collection[str]) -> bool:
    """Return whether any of ``names`` is known of the trial.

    A trial without any would be encoded as an average config.
    """
    return not names or any(name in trial.config or name in trial.observed for name in names)
