"""A batch of diverse configs by sequential acquisition with fantasy observations (kriging believer)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.acquisition import ACQUISITIONS, Acquisition, weighted_by_fit
from torchx_cubicml.advisor.initial_design import DesignPoint, first_batch, uses_random_design
from torchx_cubicml.advisor.suggestion_reasons import differences
from torchx_cubicml.advisor.surrogates.base import LIKELY_TO_FIT, JointSurrogate
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.recommender_layout import has_tables
from torchx_cubicml.searchers import SEARCHERS, searcher_named
from torchx_cubicml.searchers.base import WarmStartable, has_at_most, identity
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.neighbourhood import ascending_choices
from torchx_cubicml.space.encoding import config_at, drawn_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers import Score
    from torchx_cubicml.space import SearchSpace


_PENALTY = 0.3  # log score lost by a duplicate of a config already in the batch
_PENALTY_RANGE = 0.1  # distance (0..1) over which the penalty decays by a factor e


def diverse_subset(
    space: SearchSpace,
    pool: Sequence[Config],
    scores: NDArray[np.float64],
    *,
    count: int,
    taken: Sequence[Config],
    excluded_by: Callable[[int], NDArray[np.bool_]] | None = None,
) -> list[Config]:
    """Return ``count`` high-scoring configs that differ from one another and from ``taken`` (batch diversity).

    The best comes first.

    Args:
        space: bound; defines the choices of the configs.
        pool: configs to pick from.
        scores: of the pool, float64 ``[n]``, or one row per acquisition, used in turn, ``[n_acquisitions, n]``.
        count: maximum number of configs.
        taken: configs under way.
        excluded_by: returns which of the pool are not picked beside a config of the pool, ``[n]``.
    """
    if not pool:
        return []
    points = _coordinates(space, pool)
    scores = np.atleast_2d(scores).copy()
    for point in _coordinates(space, taken) if taken else ():
        scores -= _proximity_penalty(points, point)
    picked = []
    for number in range(min(count, len(pool))):
        top = int(np.argmax(scores[number % len(scores)]))
        if excluded_by is not None and scores[number % len(scores), top] == -np.inf:
            break
        picked.append(pool[top])
        scores -= _proximity_penalty(points, points[top])
        scores[:, top] = -np.inf
        if excluded_by is not None:
            scores[:, excluded_by(top)] = -np.inf
    return picked


def _proximity_penalty(points: NDArray[np.float64], point: NDArray[np.float64]) -> NDArray[np.float64]:
    distance = np.abs(points - point).sum(axis=1)
    return np.asarray(_PENALTY * np.exp(-distance / _PENALTY_RANGE), dtype=np.float64)


def _coordinates(space: SearchSpace, configs: Sequence[Config]) -> NDArray[np.float64]:
    """Return coordinates of configs, ``[n, n_coordinates]``, whose L1 distance is in 0..1.

    All parameters have equal weight. Numbers differ by their ranks; other choices are equal or different.
    """
    chosen = np.array([space.encode(config) for config in configs], dtype=np.intp)
    names = [dimension.parameter for dimension in space.dimensions]
    columns = [np.empty((len(configs), 0))]
    for column, dimension in zip(chosen.T, space.dimensions, strict=True):
        weight = 1.0 / (len(set(names)) * names.count(dimension.parameter))
        order = ascending_choices(dimension)
        if order is None:
            columns.append(0.5 * weight * np.eye(len(dimension.choices))[column])
        else:
            columns.append(weight * np.argsort(order)[column][:, None] / max(len(order) - 1, 1))
    return np.hstack(columns)


_MAX_CANDIDATES = 2000  # configs scored for warm starts; of a larger space, as many random ones


def roofline_starts(posterior: Posterior, *, count: int, taken: Sequence[DesignPoint]) -> list[DesignPoint]:
    """Return up to ``count`` warm-start configs: the fastest by the uncalibrated roofline model that likely fit.

    They differ from one another and from ``taken``. Where a parameter has one value per layer of a transformer, there
    is one at most, with all layers alike. The list is empty where the model does not cover the workload.
    """
    is_recommender = has_tables(posterior.rows.of({}))
    space = posterior.space if is_recommender else _with_layers_alike(posterior.space)
    try:
        configs = _candidates(space)
    except SpaceError:  # no legal config was found
        return []
    predict = Roofline().recommenders_.samples_per_second if is_recommender else Roofline().tokens_per_second
    throughput = predict([posterior.rows.of(config) for config in configs])
    covered = np.flatnonzero(np.isfinite(throughput))
    if not len(covered):
        return []
    configs = [configs[index] for index in covered.tolist()]
    scores = weighted_by_fit(np.log(throughput[covered]), posterior.forecast(configs).fits)
    count = min(count, 1) if space is not posterior.space else count
    picked = diverse_subset(posterior.space, configs, scores, count=count, taken=[point.config for point in taken])
    return [DesignPoint(config=config, why="among the fastest by the step-time formulas") for config in picked]


def _with_layers_alike(space: SearchSpace) -> SearchSpace:
    """Return the space of the same configs whose layers are all alike; ``space`` itself where no parameter has layers.

    Mixed layers differ from it by less than the formulas are wrong, before any of them was measured.
    """
    if all(item.per_layer is None for item in space.parameters):
        return space
    parameters = (item if item.per_layer is None else replace(item, groups=1) for item in space.parameters)
    return replace(space, parameters=tuple(parameters))


def _candidates(space: SearchSpace) -> list[Config]:
    """Return legal configs, all of them for a small space."""
    if has_at_most(space, _MAX_CANDIDATES):
        return list(space.configs())
    return space.sample(_MAX_CANDIDATES, rng=np.random.default_rng(0))


BASELINE_REASON = "baseline: your config, not measured yet"
_DESIGN_SIZE = 8  # configs tried on a workload after which the initial design ends
# The same for a random design, once enough configs ran: from then on a launch chosen by the acquisition is worth more.
_RANDOM_SIZE, _MIN_MEASURED, _MAX_RANDOM_SIZE = 5, 3, 12
_ROOFLINE_STARTS = 3  # warm starts before the first measurement
_MIN_FIT = 0.35  # probability to fit below which a designed launch is skipped
_MAX_LISTED = 20_000  # legal configs up to which a space is listed
_POOL_PER_SUGGESTION = 40  # candidates per suggestion, from which a diverse batch is picked
_WARM_STARTS = 20  # fastest measured configs that start a search of the cross-workload surrogate
_BEST_STARTS = 5  # best measured configs, by the surrogate, that start a search of a workload's own process


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalMethod:
    """Acquisition function and searcher that choose launches after the initial design.

    Args:
        acquisition: ``expected_improvement``, ``mean``, ``upper_bound`` or ``thompson``.
        searcher: ``exhaustive``, ``random``, ``evolution`` or ``reinforce``; maximises the acquisition.
            ``None`` lists a small space and uses evolution on a larger one.
        predictor: the only predictor of the search, as in the paper, key of ``PREDICTORS``; ``None`` for the advisor's
            own surrogate.
        random_launches: first configs, the user's own and others drawn at random, that replace the planned initial
            design, >= 0; 0 keeps the design.

    Raises:
        SpaceError: a name is unknown, or a count is negative.
    """

    acquisition: str = "expected_improvement"
    searcher: str | None = None
    predictor: str | None = None
    random_launches: int = 0

    def __post_init__(self) -> None:
        choices = (
            ("acquisition", self.acquisition, ACQUISITIONS),
            ("searcher", self.searcher, SEARCHERS),
            ("predictor", self.predictor, PREDICTORS),
        )
        for kind, name, table in choices:
            if name is not None and name not in table:
                raise SpaceError(f"unknown {kind} {name!r}; choose from {', '.join(table)}")
        if self.random_launches < 0:
            raise SpaceError(f"random_launches must be >= 0, got {self.random_launches}")

    def check(self, space: SearchSpace) -> None:
        """Check that the searcher can search ``space``.

        Raises:
            SpaceError: there are too many configs to list.
        """
        if self.searcher == "exhaustive":
            Exhaustive().check(space)


DEFAULT_METHOD = ProposalMethod()


def designed(posterior: Posterior, current: Config) -> Iterator[tuple[Config, str]]:
    """Yield the configs of the initial design that are still to be launched, each with its reason.

    The user's own config comes first whatever is predicted of it. See ``first_batch`` for the others: there are none
    where similar workloads or the roofline model already predict how configs compare. Before the first measurement, the
    fastest configs by the uncalibrated roofline model come second, where it covers the workload.
    """
    measured = posterior.measured()
    own_failed = posterior.had_error(current)
    if current in posterior.space and not posterior.is_decided(current) and not own_failed:
        yield current, "; ".join([BASELINE_REASON, *_what_ran_out_below(posterior, current)])
    if posterior.has_transfer_prior or _is_design_done(posterior, len(measured)):
        return
    best = max(measured, key=lambda config: max(posterior.outcomes[identity(config)].measured), default=None)
    points = first_batch(posterior.space, current=current, best=best)
    if not measured:
        points[1:1] = roofline_starts(posterior, count=_ROOFLINE_STARTS, taken=points[:1])
    points = [point for point in points if not posterior.is_decided(point.config)]
    points = [point for point in points if own_failed or identity(point.config) != identity(current)]
    points.sort(key=lambda point: posterior.had_error(point.config))  # configs that failed before come last
    if not points:
        return
    fits = posterior.forecast([point.config for point in points]).fits
    for point, probability in zip(points, fits, strict=True):
        is_baseline = identity(point.config) == identity(current)
        if is_baseline or probability >= _MIN_FIT:
            yield point.config, BASELINE_REASON if is_baseline else f"initial design: {point.why}"


def random_design(
    posterior: Posterior, current: Config, method: ProposalMethod, *, rng: np.random.Generator
) -> Iterator[tuple[Config, str]]:
    """Yield the user's own config, then legal configs drawn at random, each with its reason (the paper's first jobs).

    The design is complete when ``method.random_launches`` configs were tried.
    """
    if current in posterior.space and not posterior.is_decided(current) and not posterior.had_error(current):
        yield current, BASELINE_REASON
    missing = method.random_launches - len(posterior.outcomes)
    if missing <= 0:
        return
    for vector in drawn_rows(posterior.space, 2 * method.random_launches, rng=rng):
        config = config_at(posterior.space, vector)
        if identity(config) not in posterior.outcomes:
            yield config, "drawn at random"


def _what_ran_out_below(posterior: Posterior, config: Config) -> list[str]:
    """Return in words a config that ran out of memory although it needs no more than ``config``; empty without one."""
    failed = (record.config for record in posterior.outcomes.values() if record.out_of_memory)
    below = next((other for other in failed if posterior.at_least([config], other)[0]), None)
    return (
        []
        if below is None
        else [f"a config that needs no more memory ran out of it: {differences(config, below, posterior.space)}"]
    )


def without_doubtful_chains(
    posterior: Posterior, points: Iterable[tuple[Config, str]], *, count: int, current: Config
) -> list[tuple[Config, str]]:
    """Return the first ``count`` of ``points`` without repeats and without those that likely fail together.

    A config is left out if it needs at least as much memory as another one of them, or one under way, that may well not
    fit. The user's own config stays.
    """
    kept: dict[Hashable, tuple[Config, str]] = {}
    open_configs = [record.config for record in posterior.outcomes.values() if record.open]
    doubtful = [config for config in open_configs if _is_doubtful(posterior, config)]
    for config, why in points:
        is_own = identity(config) == identity(current)
        if identity(config) in kept or (not is_own and _needs_more_than_any(posterior, config, doubtful)):
            continue
        kept[identity(config)] = config, why
        if len(kept) == count:
            break
        if _is_doubtful(posterior, config):
            doubtful.append(config)
    return list(kept.values())


def _is_doubtful(posterior: Posterior, config: Config) -> bool:
    return bool(posterior.forecast([config]).fits[0] < LIKELY_TO_FIT)


def _needs_more_than_any(posterior: Posterior, config: Config, others: Sequence[Config]) -> bool:
    return any(bool(posterior.at_least([config], other)[0]) for other in others)


def _is_design_done(posterior: Posterior, n_measured: int) -> bool:
    """Return whether the initial design is complete, so that the acquisition chooses all further launches."""
    if not uses_random_design(posterior.space):
        return posterior.n_tried >= _DESIGN_SIZE
    required = _RANDOM_SIZE if n_measured >= _MIN_MEASURED else _MAX_RANDOM_SIZE
    return posterior.n_tried >= required


def searched(
    posterior: Posterior, chosen: Sequence[Config], method: ProposalMethod, *, count: int, rng: np.random.Generator
) -> list[Config]:
    """Return up to ``count`` configs besides ``chosen`` by batch acquisition (kriging believer), best first.

    Configs are picked one at a time. Each pick, and every launch under way, becomes a fantasy observation at its
    predicted mean before the next pick. A warm-started searcher runs once per pick; the candidates of any other come
    from a single search. Trees over all workloads ignore fantasy observations. There a diverse batch is picked from a
    pool, scored by the ensemble's mean, or by each predictor in turn where the workload has facts that no other had.
    """
    under_way = [record.config for record in posterior.outcomes.values() if record.open]
    taken = [*chosen, *under_way]
    if not isinstance(posterior.surrogate, JointSurrogate):
        return _from_pool(posterior, taken, method, count=count, rng=rng)
    posterior = posterior.optimistic().fantasize(taken)
    measured = posterior.measured()
    order = np.argsort(-posterior.forecast(measured).logarithm, kind="stable")[:_BEST_STARTS]
    starts = [measured[index] for index in order.tolist()]
    picked: list[Config] = []
    pool: list[Config] = []
    for _ in range(count):
        searcher = searcher_named(method.searcher or "evolution", start=tuple(starts))
        acquisition = Acquisition(posterior, method.acquisition, rng=rng)
        if isinstance(searcher, WarmStartable):
            found = searcher.search(posterior.space, acquisition, count=_BEST_STARTS, rng=rng)
        else:  # one search provides the candidates of the whole batch
            pool = pool or searcher.search(posterior.space, acquisition, count=_POOL_PER_SUGGESTION * count, rng=rng)
            found = _best_first(pool, acquisition)
        if not found:
            break
        picked.append(found[0])
        posterior = posterior.fantasize(found[:1])
        starts = [*starts[:_BEST_STARTS], *found[1:_BEST_STARTS]]
    return picked


def round_configs(
    posterior: Posterior, method: ProposalMethod, *, count: int, rng: np.random.Generator
) -> list[Config]:
    """Return the configs of a round, best first: what the searcher finds best by the posterior's own surrogate.

    CubicML (arXiv 2409.04585) launches them all before the predictor is fitted again. REINFORCE gives the best of each
    of several searches, which differ more than the best of one.
    """
    acquisition = Acquisition(posterior, method.acquisition, rng=rng)
    searcher = searcher_named(method.searcher or "evolution", start=tuple(posterior.fastest(_WARM_STARTS)))
    return _best_first(searcher.search(posterior.space, acquisition, count=count, rng=rng), acquisition)


def _best_first(pool: Sequence[Config], score: Score) -> list[Config]:
    """Return the configs of ``pool`` with a finite score, best first."""
    if not pool:
        return []
    scores = score(pool)
    return [pool[index] for index in np.argsort(-scores, kind="stable").tolist() if scores[index] > -np.inf]


def _from_pool(
    posterior: Posterior, taken: Sequence[Config], method: ProposalMethod, *, count: int, rng: np.random.Generator
) -> list[Config]:
    posterior = posterior.fantasize(taken) if taken else posterior
    name = method.searcher or ("exhaustive" if has_at_most(posterior.space, _MAX_LISTED) else "evolution")
    acquisitions = [Acquisition(each, method.acquisition, rng=rng) for each in posterior.ensemble(one=count == 1)]
    known = {identity(config) for config in taken}
    pool: dict[Hashable, Config] = {}
    for acquisition in acquisitions:
        searcher = searcher_named(name, start=tuple(posterior.fastest(_WARM_STARTS)))
        found = searcher.search(posterior.space, acquisition, count=_POOL_PER_SUGGESTION * count + len(taken), rng=rng)
        pool |= {identity(config): config for config in found if identity(config) not in known}
    configs = list(pool.values())
    if not configs:
        return []
    scores = np.stack([acquisition(configs) for acquisition in acquisitions])
    doubtful = posterior.forecast(configs).fits < LIKELY_TO_FIT

    def excluded_by(index: int) -> NDArray[np.bool_]:
        needs_more = posterior.at_least(configs, configs[index])
        return needs_more if doubtful[index] else np.zeros(len(configs), dtype=np.bool_)

    return diverse_subset(posterior.space, configs, scores, count=count, taken=taken, excluded_by=excluded_by)
