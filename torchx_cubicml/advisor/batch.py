"""A batch of diverse configs by sequential acquisition with fantasy observations (kriging believer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.acquisition import ACQUISITIONS, Acquisition, weighed
from torchx_cubicml.advisor.surrogates.base import JointSurrogate
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.searchers import SEARCHERS, searcher_named
from torchx_cubicml.searchers.base import WarmStartable, identity
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.initial_design import DesignPoint, first_batch, screens
from torchx_cubicml.searchers.neighbourhood import ladder
from torchx_cubicml.space.encoding import config_at, drawn_rows

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.searchers import Score
    from torchx_cubicml.space import SearchSpace


_NEARNESS = 0.3  # log score that a twin of a config already in the batch loses
_NEAR = 0.1  # distance, as a share of the space's choices, over which that loss fades


def diverse_subset(
    space: SearchSpace, pool: Sequence[Config], scores: NDArray[np.float64], *, count: int, taken: Sequence[Config]
) -> list[Config]:
    """Return ``count`` configs of high score that differ from one another and from ``taken``, best first.

    Args:
        space: bound; says what the configs' choices are.
        pool: configs to pick from.
        scores: of the pool, float64 ``[n]``, or several opinions that take turns, ``[n_opinions, n]``.
        count: how many at most.
        taken: configs under way.
    """
    if not pool:
        return []
    places = _places(space, pool)
    scores = np.atleast_2d(scores).copy()
    for place in _places(space, taken) if taken else ():
        scores -= _loss(places, place)
    picked = []
    for turn in range(min(count, len(pool))):
        top = int(np.argmax(scores[turn % len(scores)]))
        picked.append(pool[top])
        scores -= _loss(places, places[top])
        scores[:, top] = -np.inf
    return picked


def _loss(places: NDArray[np.float64], place: NDArray[np.float64]) -> NDArray[np.float64]:
    distance = np.abs(places - place).sum(axis=1)
    return np.asarray(_NEARNESS * np.exp(-distance / _NEAR), dtype=np.float64)


def _places(space: SearchSpace, configs: Sequence[Config]) -> NDArray[np.float64]:
    """Return where configs stand, ``[n, n_places]``, so that the sum of absolute differences is a distance in 0..1.

    Each parameter weighs alike; numbers differ by their ranks, other choices by being another.
    """
    chosen = np.array([space.encode(config) for config in configs], dtype=np.intp)
    names = [dimension.parameter for dimension in space.dimensions]
    columns = [np.empty((len(configs), 0))]
    for column, dimension in zip(chosen.T, space.dimensions, strict=True):
        weight = 1.0 / (len(set(names)) * names.count(dimension.parameter))
        rungs = ladder(dimension)
        if rungs is None:
            columns.append(0.5 * weight * np.eye(len(dimension.choices))[column])
        else:
            columns.append(weight * np.argsort(rungs)[column][:, None] / max(len(rungs) - 1, 1))
    return np.hstack(columns)


_MOST_LISTED = 2000  # configs of which the fastest are looked for; of a larger space, as many drawn ones


def roofline_starts(posterior: Posterior, *, count: int, taken: Sequence[DesignPoint]) -> list[DesignPoint]:
    """Return up to ``count`` configs that the formulas, before any calibration, find fastest among what likely fits.

    They differ from one another and from ``taken``. None where a workload, or a value per layer, is not covered.
    """
    space = posterior.space
    if any(dimension.positions for dimension in space.dimensions):
        return []
    try:
        vectors = _candidates(space)
    except SpaceError:  # nothing legal was found
        return []
    speeds = Roofline().tokens_per_second(posterior.rows.at(vectors))
    covered = np.isfinite(speeds)
    if not covered.any():
        return []
    scores = weighed(np.log(speeds[covered]), posterior.forecast_at(vectors[covered]).fits)
    configs = [config_at(space, vector) for vector in vectors[covered]]
    picked = diverse_subset(space, configs, scores, count=count, taken=[point.config for point in taken])
    return [DesignPoint(config=config, why="among the fastest by formulas of step time") for config in picked]


def _candidates(space: SearchSpace) -> NDArray[np.intp]:
    """Return legal rows of choice indices, all of a small space, ``[n, n_dimensions]``."""
    if space.size(limit=_MOST_LISTED + 1) > _MOST_LISTED:
        return drawn_rows(space, _MOST_LISTED, rng=np.random.default_rng(0))
    listed = list(space.legal.choices.vectors())
    return np.array(listed, dtype=np.intp).reshape(len(listed), len(space.dimensions))


_DESIGNED = 8  # configs of a workload that were tried, after which the predictor alone chooses
# The same where they screen plain parameters, if enough of them ran: from then on each launch is worth more where the
# predictor chooses it.
_SCREENED, _FEWEST_MEASURED, _MOST_SCREENED = 5, 3, 12
_FAVOURITES = 3  # launches that formulas choose before anything was measured
_TOO_RISKY = 0.35  # probability to fit under which a designed launch is left out
_SMALL = 20_000  # legal configs that are rather listed than searched
_POOL = 40  # good configs per suggestion, from which a batch that differs is picked
_STARTS = 20  # fastest configs that a search over all workloads begins with
_CLIMBED = 5  # good configs from which a climb begins


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalMethod:
    """How the next launches are chosen once the designed ones are made.

    Args:
        acquisition: what a launch is worth: ``expected_improvement``, ``mean``, ``upper_bound`` or ``thompson``.
        searcher: what looks for the worthiest: ``exhaustive``, ``random``, ``climb``, ``evolution`` or ``reinforce``;
            ``None`` lists a small space, climbs from what was measured of the workload, and evolves where hardly
            anything was.

    Raises:
        SpaceError: a name is unknown.
    """

    acquisition: str = "expected_improvement"
    searcher: str | None = None

    def __post_init__(self) -> None:
        asked = (("acquisition", self.acquisition, ACQUISITIONS), ("searcher", self.searcher, SEARCHERS))
        for what, name, table in asked:
            if name is not None and name not in table:
                raise SpaceError(f"unknown {what} {name!r}; legal are {', '.join(table)}")

    def check(self, space: SearchSpace) -> None:
        """Check that the searcher can search ``space``.

        Raises:
            SpaceError: there are too many configs to list.
        """
        if self.searcher == "exhaustive":
            Exhaustive().check(space)


DEFAULT_METHOD = ProposalMethod()


def designed(posterior: Posterior, current: Config) -> Iterator[tuple[Config, str]]:
    """Yield what is worth measuring before anything is predicted, with the reason; see ``first_batch``.

    Where similar workloads or formulas teach how configs compare, only the user's own config stands before what they
    promise. Before anything was measured, what uncalibrated formulas favour comes next, where they cover the workload.
    """
    measured = posterior.measured()
    if _are_enough(posterior, len(measured)):
        return
    if posterior.taught_elsewhere:
        if current in posterior.space and not posterior.settled(current) and not posterior.erred(current):
            yield current, "untried first guess: your own config"
        return
    best = max(measured, key=lambda config: max(posterior.records[identity(config)].measured), default=None)
    points = first_batch(posterior.space, current=current, best=best)
    if not measured:
        points[1:1] = roofline_starts(posterior, count=_FAVOURITES, taken=points[:1])
    points = [point for point in points if not posterior.settled(point.config)]
    points.sort(key=lambda point: posterior.erred(point.config))  # what may fail again comes last
    fits = posterior.forecast([point.config for point in points]).fits if points else np.empty(0)
    for point, chance in zip(points, fits, strict=True):
        if chance >= _TOO_RISKY:
            yield point.config, f"untried first guess: {point.why}"


def _are_enough(posterior: Posterior, n_measured: int) -> bool:
    """Whether the predictor alone chooses from now on."""
    if not screens(posterior.space):
        return posterior.n_tried >= _DESIGNED
    least = _SCREENED if n_measured >= _FEWEST_MEASURED else _MOST_SCREENED
    return posterior.n_tried >= least


def searched(
    posterior: Posterior, chosen: Sequence[Config], method: ProposalMethod, *, count: int, rng: np.random.Generator
) -> list[Config]:
    """Return up to ``count`` configs besides those ``chosen`` that ``method`` finds worth launching, best first.

    They are picked one by one, each as if those before it, and all that is under way, had been measured at what is
    expected of them: by a search of its own where the searcher begins at the best known, else from one search's tops.
    Trees learn nothing from that: there a batch is picked from a pool so that it differs, by what several predictors
    agree on, or by each in turn where no other workload had one of the facts.
    """
    under_way = [record.config for record in posterior.records.values() if record.open]
    taken = [*chosen, *under_way]
    if not isinstance(posterior.knowledge, JointSurrogate):
        return _from_pool(posterior, taken, method, count=count, rng=rng)
    posterior = posterior.optimistic().fantasize(taken)
    measured = posterior.measured()
    order = np.argsort(-posterior.forecast(measured).logarithm, kind="stable")[:_CLIMBED]
    tops = [measured[index] for index in order.tolist()]
    picked: list[Config] = []
    pool: list[Config] = []
    for _ in range(count):
        searcher = searcher_named(method.searcher or "climb", start=tuple(tops))
        acquisition = Acquisition(posterior, method.acquisition, rng=rng)
        if isinstance(searcher, WarmStartable):
            found = searcher.search(posterior.space, acquisition, count=_CLIMBED, rng=rng)
        else:  # the tops of one search serve the whole batch
            pool = pool or searcher.search(posterior.space, acquisition, count=_POOL * count, rng=rng)
            found = _best_first(pool, acquisition)
        if not found:
            break
        picked.append(found[0])
        posterior = posterior.fantasize(found[:1])
        tops = [*tops[:_CLIMBED], *found[1:_CLIMBED]]
    return picked


def _best_first(pool: Sequence[Config], score: Score) -> list[Config]:
    """Return those of ``pool`` that may be proposed, best first."""
    if not pool:
        return []
    scores = score(pool)
    return [pool[place] for place in np.argsort(-scores, kind="stable").tolist() if scores[place] > -np.inf]


def _from_pool(
    posterior: Posterior, taken: Sequence[Config], method: ProposalMethod, *, count: int, rng: np.random.Generator
) -> list[Config]:
    small = posterior.space.size(limit=_SMALL + 1) <= _SMALL
    name = method.searcher or ("exhaustive" if small else "evolution")
    acquisitions = [Acquisition(each, method.acquisition, rng=rng) for each in posterior.ensemble(one=count == 1)]
    known = {identity(config) for config in taken}
    pool: dict[Hashable, Config] = {}
    for acquisition in acquisitions:
        searcher = searcher_named(name, start=tuple(posterior.fastest(_STARTS)))
        found = searcher.search(posterior.space, acquisition, count=_POOL * count + len(taken), rng=rng)
        pool |= {identity(config): config for config in found if identity(config) not in known}
    configs = list(pool.values())
    if not configs:
        return []
    scores = np.stack([acquisition(configs) for acquisition in acquisitions])
    return diverse_subset(posterior.space, configs, scores, count=count, taken=taken)
