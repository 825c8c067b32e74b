"""Trials in, suggestions out: what to launch next to learn most, and what is known to be best.

Pure and without state: everything is rebuilt from the trials each time, so a killed process loses nothing.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.batch import DEFAULT_METHOD, ProposalMethod, designed, searched
from torchx_cubicml.advisor.explain import build_suggestions
from torchx_cubicml.advisor.posterior import Posterior, ranked
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.records.trial import State, Trial, freeze_values
from torchx_cubicml.records.workload import matches
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.space.encoding import vectors_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.noise import Belief
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Config, Workload
    from torchx_cubicml.searchers import Searcher
    from torchx_cubicml.space import SearchSpace


_SMALL_FOR_A_LAUNCH = 2_000  # legal configs that are rather listed than searched, where a user waits
_STARTS = 20  # fastest configs that the search begins with
_SAFE = 0.995  # probability to fit that an ordinary launch asks of a config that was never run
_ENOUGH_TO_EXTRAPOLATE = 8  # configs tried before an ordinary launch may run a config that was never run
_UNTRIED = 2.33  # deviations that its forecast must stand above the best: nobody has seen it run
_WORTH_CHANGING = 1.01  # predicted gain under which the user's own config stays
_NEAREST = 3  # measured trials that are told beside each suggestion
_CONFIDENCE = 0.95  # that a config is faster than the user's own: nine of ten claims hold with room to spare


def suggest(  # noqa: PLR0913 - the one entry of the library: each has a meaning of its own
    space: SearchSpace,
    *,
    workload: Workload,
    current: Config,
    trials: Iterable[Trial],
    count: int = 1,
    seed: int = 0,
    pending: Sequence[Config] = (),
    method: ProposalMethod = DEFAULT_METHOD,
    predictor: str = "",
) -> list[Suggestion]:
    """Return up to ``count`` distinct configs to launch next, the most telling first.

    While the workload has few trials: the user's own config, then a designed batch. Afterwards: what promises the
    largest improvement and fits. Never a config that was measured, is under way, or is known not to fit; one whose
    launch was broken off, or failed once for a cause that nobody knows, may come again. Where none is left, the list is
    short or empty.

    Args:
        space: bound or not.
        workload: facts, with ``world_size``.
        current: the user's own config; derived values may be left out.
        trials: of any workload, in any order; running and planned ones count as under way.
        count: how many are wanted, >= 1.
        seed: of all randomness.
        pending: configs under way that no trial tells of yet.
        method: how launches are chosen after the designed ones.
        predictor: name of the method that learns from all workloads; the default where there is none of that name, as
            a store of another version may hold.

    Raises:
        SpaceError: the space cannot be bound to the workload or is too large for ``method``, or ``count`` is not
            positive.
        RecordError: a fact or a value of a config is neither a scalar nor a flat list.
    """
    if count < 1:
        raise SpaceError(f"count must be >= 1, got {count}")
    known = [*trials, *_planned(workload, pending)]
    study = Study.of(space, workload=workload, current=current, trials=known, seed=seed, predictor=predictor)
    return study.suggest(count=count, method=method)


def best_known(
    space: SearchSpace,
    *,
    workload: Workload,
    current: Config,
    trials: Iterable[Trial],
    seed: int = 0,
    predictor: str = "",
) -> Suggestion | None:
    """Return what an ordinary launch should run: the best config that is surely faster than the user's own, else that.

    A measured config is judged by its prediction and its own measurements together, and passed over where they were
    held up by something else. One that was never run is returned only if its whole 98 % interval stands above the best
    measured one and it almost surely fits. The user's own config stays unless another promises a gain of a per cent,
    and is faster at all with a probability of 95 %.

    Args:
        space: bound or not.
        workload: facts, with ``world_size``.
        current: the user's own config.
        trials: of any workload, in any order.
        seed: of all randomness.
        predictor: see ``suggest``.

    Returns:
        The suggestion, whose config is ``current`` where nothing better is known; ``None`` where no legal config of
        this workload was measured yet.

    Raises:
        SpaceError: the space cannot be bound to the workload.
        RecordError: see ``suggest``.
    """
    workload, current = freeze_values(workload, where="workload"), freeze_values(current, where="current")
    space = space.bind(workload=workload, current=current)
    trials = list(trials)
    if not any(trial.measurement is not None and matches(trial, workload) for trial in trials):
        return None  # without the time that learning takes
    study = Study.of(space, workload=workload, current=current, trials=trials, seed=seed, predictor=predictor)
    return study.best_known()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What the trials of one moment teach, learned once for several questions; ``suggest`` and ``best_known`` ask one.

    Args:
        outlook: of the workload.
        current: the user's own config.
        rng: as learning has left it; each question begins there.
    """

    posterior: Posterior
    current: Config
    rng: np.random.Generator

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        *,
        workload: Workload,
        current: Config,
        trials: Iterable[Trial],
        seed: int = 0,
        predictor: str = "",
    ) -> Self:
        """Learn from ``trials``; the arguments are those of ``suggest``.

        Raises:
            SpaceError: the space cannot be bound to the workload.
            RecordError: see ``suggest``.
        """
        workload, current = freeze_values(workload, where="workload"), freeze_values(current, where="current")
        rng = np.random.default_rng(seed)
        bound = space.bind(workload=workload, current=current)
        current = _completed(bound, current)
        with one_thread():
            posterior = Posterior.of(
                bound, workload=workload, current=current, trials=trials, rng=rng, predictor=predictor
            )
        return cls(posterior=posterior, current=current, rng=rng)

    def suggest(self, *, count: int = 1, method: ProposalMethod = DEFAULT_METHOD) -> list[Suggestion]:
        """See ``suggest``."""
        posterior, rng = self.posterior, deepcopy(self.rng)
        method.check(posterior.space)
        with one_thread():
            reasons: dict[Hashable, tuple[Config, str]] = {}
            for config, why in designed(posterior, self.current):
                reasons.setdefault(identity(config), (config, why))
            chosen = list(reasons.values())[:count]
            if len(chosen) < count:
                before = [config for config, _ in chosen]
                more = searched(posterior, before, method, count=count - len(before), rng=rng)
                chosen += [(config, "") for config in more]
            return build_suggestions(posterior, chosen, self.current, n_nearest=_NEAREST)

    def best_known(self) -> Suggestion | None:
        """See ``best_known``."""
        with one_thread():
            return _best(self.posterior, self.current, deepcopy(self.rng))


def _best(posterior: Posterior, current: Config, rng: np.random.Generator) -> Suggestion | None:
    measured = ranked(posterior).trusted  # which may be of an older space file
    if not measured:
        return None
    best = posterior.beliefs(measured[:1])[0]
    bold = _beyond(posterior, best, rng) if best is not None else None
    why = "the fastest of the configs measured so far, by prediction and measurements together"
    candidates = [(config, why) for config in measured]
    if bold is not None:
        candidates.insert(0, (bold, "not run yet, but predicted faster than all that was measured even at the low end"))
    gains = posterior.gains([config for config, _ in candidates], current)
    sure = [each for each, gain in zip(candidates, gains, strict=True) if gain is None or _is_claimed(gain)]
    staying = current, "your own config: nothing known is surely faster by a per cent"
    return build_suggestions(posterior, sure[:1] or [staying], current)[0]


def _is_claimed(gain: Belief) -> bool:
    """Whether a gain is large enough to matter and surely more than noise."""
    return gain.throughput >= _WORTH_CHANGING and gain.quantile(1.0 - _CONFIDENCE) > 1.0


def _completed(space: SearchSpace, current: Config) -> Config:
    """Return the user's own config with the derived values that were left out, where it is legal."""
    names = {parameter.name for parameter in space.parameters}
    if current.keys() < names:
        with suppress(SpaceError):
            found = space.decode(space.encode(current))
            if found is not None and all(found[name] == value for name, value in current.items()):
                return found
    return current


def _planned(workload: Workload, pending: Sequence[Config]) -> list[Trial]:
    facts = freeze_values(workload, where="workload")
    configs = [freeze_values(config, where=f"pending[{number}]") for number, config in enumerate(pending)]
    return [
        Trial(trial_id=f"pending-{number}", workload=facts, config=config, state=State.PLANNED)
        for number, config in enumerate(configs)
    ]


def _quick_searcher(posterior: Posterior) -> Searcher:
    if posterior.space.size(limit=_SMALL_FOR_A_LAUNCH + 1) <= _SMALL_FOR_A_LAUNCH:
        return Exhaustive()
    return Evolution(start=tuple(posterior.fastest(_STARTS)), population=40, children=250, generations=3, climbs=2)


def _beyond(posterior: Posterior, best: Belief, rng: np.random.Generator) -> Config | None:
    """Return the config never run whose low end stands highest, if that is above ``best`` and it surely fits."""
    if posterior.n_tried < _ENOUGH_TO_EXTRAPOLATE:
        return None
    low_end = _LowerBound(posterior)
    found = _quick_searcher(posterior).search(posterior.space, low_end, count=1, rng=rng)
    return found[0] if found and low_end(found)[0] > np.log(best.throughput) else None


class _LowerBound:
    """The low end of the 98 % interval of configs that were not run and surely fit: a ``VectorScore``."""

    def __init__(self, posterior: Posterior) -> None:
        self._outlook, self._settled = posterior, posterior.settled_rows()

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        return self.of_vectors(vectors_of(self._outlook.space, configs))

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        forecast = self._outlook.forecast_at(vectors)
        tried = np.array([row.tobytes() in self._settled for row in vectors], dtype=np.bool_)
        return np.where((forecast.fits < _SAFE) | tried, -np.inf, forecast.logarithm - _UNTRIED * forecast.spread)
