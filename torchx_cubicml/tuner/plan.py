"""What a tune launches next, worked out from the trials alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.advisor import Suggestion, best_known, suggest
from torchx_cubicml.advisor.same_ground import same_ground, under_way
from torchx_cubicml.comparison import Comparison, Repeats, compare
from torchx_cubicml.history import config_key, matches
from torchx_cubicml.noise import repeat_noise
from torchx_cubicml.trial import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.trial import Config, Trial
    from torchx_cubicml.tuner.request import Prepared

_NOTHING_LEARNED = {State.PLANNED, State.RUNNING, State.STOPPED_EARLY, State.INFRASTRUCTURE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The trials of the workload, told apart by whether they were there before this tune.

    Only this tune's own launches are compared: machines, neighbours and software change between tunes. Of the winner,
    the measurement that made it the winner does not count: it was chosen for being high.
    """

    before: tuple[Trial, ...]
    own: tuple[Trial, ...]

    @classmethod
    def of(cls, prepared: Prepared, trials: Sequence[Trial], known: frozenset[str]) -> Evidence:
        """Return the evidence on the workload; ``known`` are the trials that were there before this tune."""
        comparable, _ = same_ground(under_way(trials, prepared.workload), prepared.workload)
        of_workload = [trial for trial in comparable if matches(trial, prepared.workload)]
        return cls(
            before=tuple(trial for trial in of_workload if trial.trial_id in known),
            own=tuple(sorted((t for t in of_workload if t.trial_id not in known), key=lambda t: t.started_at)),
        )

    def measured(self, config: Config, objective: str, *, chosen: bool) -> tuple[float, ...]:
        """Return this tune's measurements of ``config``, without the one by which it was ``chosen``."""
        values = _throughputs(self.own, config, objective)
        found_here = chosen and not _throughputs(self.before, config, objective)
        return values[1:] if found_here else values


def next_launch(
    prepared: Prepared, trials: Sequence[Trial], *, launches_left: int, known: frozenset[str] = frozenset()
) -> tuple[str, Suggestion] | None:
    """Return why and what to launch next; ``None`` when nothing is left to learn.

    The user's own config comes first. The last launches measure it and the winner again, in turn, so that a gain can be
    told from noise.
    """
    space, workload, current = prepared.space, prepared.workload, prepared.current
    evidence = Evidence.of(prepared, trials, known)
    own = _own_config(current)
    if not any(_settles(trial, current) for trial in (*evidence.before, *evidence.own)):
        return "baseline", own
    seed = prepared.request.seed + len(trials)
    best = best_known(space, workload=workload, current=current, trials=trials, seed=seed, predictor=prepared.predictor)
    repeats = _lacking_repeats(prepared, evidence, own, best)
    if len(repeats) < launches_left:
        found = suggest(
            space,
            workload=workload,
            current=current,
            trials=trials,
            count=1,
            seed=seed,
            predictor=prepared.predictor,
        )
        if found:
            return "search", found[0]
    return ("confirm", repeats[0]) if repeats else None


def winner_of(
    prepared: Prepared, trials: Sequence[Trial], *, known: frozenset[str]
) -> tuple[Suggestion | None, Comparison | None]:
    """Return the config of highest posterior mean, and how its confirmations compare with the user's own config."""
    space, workload, current = prepared.space, prepared.workload, prepared.current
    best = best_known(
        space,
        workload=workload,
        current=current,
        trials=trials,
        seed=prepared.request.seed,
        predictor=prepared.predictor,
    )
    if best is None:
        return None, None
    evidence = Evidence.of(prepared, trials, known)
    chosen = config_key(best.config) != config_key(current)
    sides = [
        evidence.measured(current, space.objective, chosen=False),
        evidence.measured(best.config, space.objective, chosen=chosen),
    ]
    if not all(sides):
        return best, None
    baseline, confirmed = (
        Repeats(config=config, throughputs=values) for config, values in zip((current, best.config), sides, strict=True)
    )
    noise = repeat_noise(evidence.own, objective=space.objective)
    return best, compare(baseline, confirmed, objective=space.objective, noise=noise)


def _own_config(current: Config) -> Suggestion:
    return Suggestion(
        config=current,
        throughput=None,
        low=None,
        high=None,
        probability_to_fit=1.0,
        reason="your own config",
        n_trials=0,
    )


def _settles(trial: Trial, config: Config) -> bool:
    """Whether a trial says what becomes of ``config``: measured, or failed by itself."""
    tells = trial.measurement is not None or trial.state not in _NOTHING_LEARNED
    return tells and config_key(trial.config) == config_key(config)


def _lacking_repeats(
    prepared: Prepared, evidence: Evidence, own: Suggestion, best: Suggestion | None
) -> list[Suggestion]:
    """Return each contender as often as it lacks measurements, taken in turn, the least measured first."""
    contenders = [(own, False)]
    if best is not None and config_key(best.config) != config_key(own.config):
        contenders.append((best, True))
    lacking: list[tuple[int, int, Suggestion]] = []
    for order, (contender, chosen) in enumerate(contenders):
        have = len(evidence.measured(contender.config, prepared.space.objective, chosen=chosen))
        lacking += [(repeat, order, contender) for repeat in range(have, prepared.request.repeats_made)]
    return [contender for _, _, contender in sorted(lacking, key=lambda item: item[:2])]


def _throughputs(trials: Sequence[Trial], config: Config, objective: str) -> tuple[float, ...]:
    key = config_key(config)
    measured = [trial.measurement for trial in trials if trial.measurement and config_key(trial.config) == key]
    return tuple(value for measurement in measured if (value := measurement.throughput(objective)) is not None)
