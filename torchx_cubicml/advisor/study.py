"""Study: a posterior fitted once to the trials, for suggestions and the best known config.

Pure and stateless: everything is rebuilt from the trials each time, so a killed process loses nothing.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.batch import (
    DEFAULT_METHOD,
    ProposalMethod,
    designed,
    random_design,
    round_configs,
    searched,
    without_doubtful_chains,
)
from torchx_cubicml.advisor.claims import claims_of
from torchx_cubicml.advisor.posterior import Posterior, ranked
from torchx_cubicml.advisor.rule_facts import with_observed_counts
from torchx_cubicml.advisor.suggestion_reasons import build_suggestions
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.history.history import History
from torchx_cubicml.history.migration import migrated_trials
from torchx_cubicml.history.objective import measured_objective
from torchx_cubicml.launch.command_texts import program_path
from torchx_cubicml.launch.config_io import program_command
from torchx_cubicml.launch.messages import best_word, better_word
from torchx_cubicml.predictors import DEFAULT_PREDICTOR
from torchx_cubicml.predictors.measurement_error import SURE
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.records.values import freeze_values
from torchx_cubicml.searchers.base import has_at_most, identity
from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.space.encoding import vectors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.searchers import Searcher
    from torchx_cubicml.space import SearchSpace


_MAX_LISTED = 2_000  # legal configs up to which a space is listed, where a user waits
_WARM_STARTS = 20  # fastest measured configs that start the search
_SAFE = 0.995  # probability to fit required of an untried config in an ordinary launch
_MIN_TRIED = 8  # configs tried before an ordinary launch may run an untried one
_UNTRIED_SDS = 2.33  # standard deviations from mean to lower bound of an untried config, as no run confirms it
_MIN_GAIN = 1.01  # predicted gain below which the user's own config stays
_N_NEAREST = 3  # measured trials listed with each suggestion
_SURELY_BETTER = 0.9  # least probability of being better than the best config that was measured again


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
    predictor: str = DEFAULT_PREDICTOR,
) -> list[Suggestion]:
    """Return up to ``count`` distinct configs to launch next, of highest acquisition first.

    While the workload has few trials, the user's own config and then an initial design come first. Afterwards the
    acquisition chooses: large expected improvement, likely to fit. Configs that were measured, are under way, or are
    known not to fit are excluded. A config may come again if its launch was broken off, or failed once for an unknown
    cause. The list is short or empty where no config is left.

    Args:
        space: bound or not.
        workload: facts, with ``world_size``.
        current: the user's own config; derived values may be left out.
        trials: of any workload, in any order; running and planned ones count as under way.
        count: maximum number of configs, >= 1.
        seed: of all randomness.
        pending: configs under way that have no trial yet.
        method: acquisition and searcher that choose launches after the initial design.
        predictor: name of the method fitted to all workloads. An unknown name, as in a store of another version, means
            the default.

    Raises:
        SpaceError: the space cannot be bound to the workload or is too large for ``method``, or ``count`` is not
            positive.
        RecordError: a fact or a value of a config is neither a scalar nor a flat list.
    """
    if count < 1:
        raise SpaceError(f"count must be >= 1, got {count}")
    all_trials = [*trials, *_planned(workload, pending)]
    study = Study.of(space, workload=workload, current=current, trials=all_trials, seed=seed, predictor=predictor)
    return study.suggest(count=count, method=method)


def best_known(
    space: SearchSpace,
    *,
    workload: Workload,
    current: Config,
    trials: Iterable[Trial],
    seed: int = 0,
    predictor: str = DEFAULT_PREDICTOR,
) -> Suggestion | None:
    """Return the config for an ordinary launch: the best one surely faster than the user's own, else the user's own.

    A measured config is judged by its posterior, from prediction and measurements; outliers are passed over. A config
    that was never run is returned only if its whole 98 % interval is above the best measured one and it almost surely
    fits. The user's own config stays unless another has a predicted gain of a per cent, and is faster at all with a
    probability of 98 %: see ``claims``. The best config that was measured again comes before each other one, unless
    that is better with a probability of 90 %: a launch then takes what a tune has confirmed.

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
    return incumbent(_history(space, workload, current, trials, predictor), seed=seed)


def incumbent(history: History, *, seed: int = 0) -> Suggestion | None:
    """Return the config for an ordinary launch, as ``best_known`` does."""
    history.space.bind(workload=history.workload, current=history.current)
    if not any(trial.measurement is not None for trial in history.own):
        return None  # saves the time of a fit
    return Study.fitted(history, seed=seed).best_known(confirmed=True)


def _history(
    space: SearchSpace, workload: Workload, current: Config, trials: Iterable[Trial], predictor: str
) -> History:
    """Return the history of a command of which its config alone is known."""
    program = str(workload.get("program", ""))
    name = program.removeprefix("-m ")
    file = program_path(name, is_module=name != program) if name else None
    history = History(
        space=space,
        workload=freeze_values(workload, where="workload"),
        current=freeze_values(current, where="current"),
        trials=[*trials],
        command=program_command(file, space),
        predictor=predictor,
    )
    return replace(history, trials=migrated_trials(history))


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Posterior of one workload at one moment, fitted once for several queries.

    ``suggest`` and ``best_known`` make one query each.

    Args:
        posterior: of the workload.
        current: the user's own config.
        rng: in its state after the fit; each query starts from a copy.
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
        predictor: str = DEFAULT_PREDICTOR,
    ) -> Self:
        """Fit a study to ``trials``; the arguments are those of ``suggest``.

        Raises:
            SpaceError: the space cannot be bound to the workload.
            RecordError: see ``suggest``.
        """
        return cls.fitted(_history(space, workload, current, trials, predictor), seed=seed)

    @classmethod
    def fitted(cls, history: History, *, seed: int = 0) -> Self:
        """Fit a study to a history in the terms of its space.

        Raises:
            SpaceError: the space cannot be bound to the workload.
        """
        workload, rng = history.workload, np.random.default_rng(seed)
        space = with_observed_counts(measured_objective(history)[0], history.own)
        ran = [trial.config for trial in history.own if trial.measurement is not None]
        bound = space.bind(workload=workload, current=history.current, ran=ran)
        current, predictor = _completed(bound, history.current), history.predictor
        with one_thread():
            posterior = Posterior.of(
                bound, workload=workload, current=current, trials=history.trials, rng=rng, predictor=predictor
            )
        return cls(posterior=posterior, current=current, rng=rng)

    def suggest(self, *, count: int = 1, method: ProposalMethod = DEFAULT_METHOD) -> list[Suggestion]:
        """Return the next configs to launch; see ``suggest``."""
        posterior, rng = self.posterior, deepcopy(self.rng)
        method.check(posterior.space)
        with one_thread():
            chosen = self._designed(method, count=count)
            if missing := count - len(chosen):
                taken = [config for config, _ in chosen]
                more = searched(posterior, taken, method, count=missing, rng=rng)
                chosen += [(config, "") for config in more]
            return build_suggestions(posterior, chosen, self.current, n_nearest=_N_NEAREST)

    def designs(self, *, count: int, method: ProposalMethod) -> list[Suggestion]:
        """Return the next configs of the initial design; empty when it is complete."""
        with one_thread():
            chosen = self._designed(method, count=count)
            return build_suggestions(self.posterior, chosen, self.current, n_nearest=_N_NEAREST)

    def search_by_predictor(self, *, count: int, method: ProposalMethod, round_number: int) -> list[Suggestion]:
        """Return the configs of a round, best prediction first: the searcher's best by ``method.predictor`` alone.

        Args:
            count: maximum number of configs.
            method: names a predictor.
            round_number: number of the round, >= 1, which each suggestion bears.
        """
        method.check(self.posterior.space)
        predictor, rng = method.predictor or DEFAULT_PREDICTOR, deepcopy(self.rng)
        with one_thread():
            posterior = self.posterior.by_predictor(predictor, rng=rng)
            configs = round_configs(posterior, method, count=count, rng=rng)
            why = f"round {round_number}: found by {method.searcher or 'evolution'}, predicted by {predictor}"
            found = build_suggestions(posterior, [(config, why) for config in configs], self.current)
        return [replace(each, round_number=round_number) for each in found]

    def _designed(self, method: ProposalMethod, *, count: int) -> list[tuple[Config, str]]:
        if method.random_launches:
            designs = random_design(self.posterior, self.current, method, rng=deepcopy(self.rng))
            return list(islice(designs, count))
        return without_doubtful_chains(
            self.posterior, designed(self.posterior, self.current), count=count, current=self.current
        )

    def best_known(self, *, confirmed: bool = False) -> Suggestion | None:
        """Return the best known config; see ``best_known``.

        Args:
            confirmed: whether a config that was measured again comes first, as for an ordinary launch.
        """
        with one_thread():
            return _best(self.posterior, self.current, deepcopy(self.rng), confirmed=confirmed)


def _best(
    posterior: Posterior, current: Config, rng: np.random.Generator, *, confirmed: bool = False
) -> Suggestion | None:
    measured = ranked(posterior).trusted  # possibly illegal in the present space file
    if not measured:
        return None
    (best,) = posterior.estimates(measured[:1]).logarithm.tolist()
    untried = _untried_winner(posterior, best, rng)
    objective = posterior.space.objective
    why = f"{best_word(objective)} measured config, by predictions and measurements combined"
    candidates = [(config, why) for config in measured]
    if untried is not None:
        low = "not run yet; even the low end of its prediction is"
        candidates.insert(0, (untried, f"{low} {better_word(objective)} than every measured config"))
    claims = claims_of(posterior, [config for config, _ in candidates], current)
    # A gain is claimed where it is large enough to matter and surely more than noise.
    sure = [
        (each, claim)
        for each, claim in zip(candidates, claims, strict=True)
        if claim is None or (claim.quantile(0.5) >= _MIN_GAIN and claim.probability_above(0.0) > SURE)
    ]
    if not sure:
        unchanged = current, f"your config: no known config is reliably at least 1 % {better_word(objective)}"
        return build_suggestions(posterior, [unchanged], current)[0]
    chosen, claim = sure[0]
    if confirmed and (found := _against_confirmed(posterior, [config for (config, _), _ in sure])):
        place, why = found
        (config, _), claim = sure[place]
        chosen = config, why
    return build_suggestions(posterior, [chosen], current, claims=[claim])[0]


def _against_confirmed(posterior: Posterior, configs: Sequence[Config]) -> tuple[int, str] | None:
    """Return the place of the first config that was measured again, or of the first that is surely better, and why.

    ``None`` where that is the first of all.
    """
    objective = posterior.space.objective
    again = next((number for number, config in enumerate(configs) if _times_measured(posterior, config) > 1), 0)
    if not again:
        return None
    claims = enumerate(claims_of(posterior, configs[:again], configs[again]))
    surely = (place for place, claim in claims if claim is None or claim.probability_above(0.0) > _SURELY_BETTER)
    place = next(surely, again)
    best, better = best_word(objective), better_word(objective)
    why = f"{best} config that was measured again, and no other is surely {better}"
    if place != again:
        why = (
            f"surely {better} than the {best} config that was measured again, by predictions and measurements combined"
        )
    return (place, why) if place else None


def _times_measured(posterior: Posterior, config: Config) -> int:
    outcome = posterior.outcomes.get(identity(config))
    return len(outcome.measured) if outcome is not None else 0


def _completed(space: SearchSpace, current: Config) -> Config:
    """Return the user's own config with missing derived values filled in, where it is legal."""
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
    if has_at_most(posterior.space, _MAX_LISTED):
        return Exhaustive()
    return Evolution(start=tuple(posterior.fastest(_WARM_STARTS)), population=40, children=250, generations=3, climbs=2)


def _untried_winner(posterior: Posterior, best: float, rng: np.random.Generator) -> Config | None:
    """Return the untried config with the highest lower bound, if that is above ``best`` and the config surely fits.

    ``best`` is the logarithm of the incumbent's throughput.
    """
    if posterior.n_tried < _MIN_TRIED:
        return None
    lower_bound = _LowerBound(posterior)
    found = _quick_searcher(posterior).search(posterior.space, lower_bound, count=1, rng=rng)
    return found[0] if found and lower_bound(found)[0] > best else None


class _LowerBound:
    """Lower bound of the 98 % interval of untried configs that surely fit: a ``VectorScore``."""

    def __init__(self, posterior: Posterior) -> None:
        self._posterior, self._decided_rows = posterior, posterior.decided_rows()

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        return self.of_vectors(vectors_of(self._posterior.space, configs))

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        forecast = self._posterior.forecast_at(vectors)
        decided = np.array([row.tobytes() in self._decided_rows for row in vectors], dtype=np.bool_)
        return np.where((forecast.fits < _SAFE) | decided, -np.inf, forecast.logarithm - _UNTRIED_SDS * forecast.spread)
