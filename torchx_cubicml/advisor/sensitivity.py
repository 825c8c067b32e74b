"""What each parameter of the best config is worth: predicted, and measured where trials differ in it alone."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.posterior import as_recorded, ranked
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.records.trial import Config, Value
    from torchx_cubicml.space import SearchSpace

_MOST_CHOICES = 6  # of one parameter; of a longer list every other is left out until it fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The best config with another value of one parameter.

    Args:
        value: of the parameter.
        predicted: ratio of its throughput to that of the best config: 0.9 is ten per cent slower.
        low: lower end of the 80 % interval of that ratio.
        high: upper end.
        measured: the same ratio of mean measurements; ``None`` where it was not measured.
        n_measured: how many measurements of it there are.
        probability_to_fit: in memory, 0..1.
    """

    value: Value
    predicted: float
    low: float
    high: float
    measured: float | None
    n_measured: int
    probability_to_fit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterWorth:
    """What one parameter of the best config is worth.

    Args:
        name: of the parameter.
        value: that the best config has.
        own: the user's own config's value among ``alternatives``; ``None`` where it is the same, or none of them.
        alternatives: other values, the fastest predicted first.
    """

    name: str
    value: Value
    own: Alternative | None
    alternatives: tuple[Alternative, ...]

    def told(self) -> str:
        """Return it in words.

        >>> slow = Alternative(value=1, predicted=0.8, low=0.75, high=0.85, measured=0.81, n_measured=2,
        ...                    probability_to_fit=1.0)
        >>> ParameterWorth(name="micro_batch_size", value=8, own=slow, alternatives=(slow,)).told()
        'micro_batch_size 8: 0.80x with 1 (0.75x to 0.85x; measured 0.81x)'
        """
        parts = [_told(each) for each in self.alternatives]
        return f"{self.name} {_short(self.value)}: {', '.join(parts) if parts else 'no other value is legal here'}"


def sensitivity(study: Study, *, winner: Config | None = None) -> tuple[ParameterWorth, ...]:
    """Return what each parameter is worth at ``winner``, the weightiest first.

    Each is set to its other choices while all others stay (derived ones follow); a value per layer is compared with
    one choice for all layers, and with the user's own.

    Args:
        study: what was learned.
        winner: the measured config of highest posterior mean where none is given.

    Returns:
        Nothing where no legal config of the workload was measured yet, or ``winner`` is not legal.
    """
    posterior = study.posterior
    with one_thread():
        best = ranked(posterior).trusted[:1] if winner is None else (as_recorded(posterior, winner),)
        if not posterior.measured() or best[0] not in posterior.space:
            return ()
        names = dict.fromkeys(dimension.parameter for dimension in posterior.space.dimensions)
        worths = [_worth(posterior, best[0], name, study.current) for name in names]
    return tuple(sorted(worths, key=_weight))


def _worth(posterior: Posterior, best: Config, name: str, current: Config) -> ParameterWorth:
    others = list(_others(posterior, best, name, current).values())
    gains = posterior.gains(others, best) if others else []
    fits = posterior.forecast(others).fits.tolist() if others else []
    base = _measured(posterior, best)
    found = []
    for config, gain, chance in zip(others, gains, fits, strict=True):
        speeds = _measured(posterior, config)
        if gain is None:
            continue
        found.append(
            Alternative(
                value=config[name],
                predicted=gain.throughput,
                low=gain.quantile(0.1),
                high=gain.quantile(0.9),
                measured=fmean(speeds) / fmean(base) if speeds and base else None,
                n_measured=len(speeds),
                probability_to_fit=chance,
            )
        )
    own = next((each for each in found if each.value == current.get(name)), None)
    ranked = tuple(sorted(found, key=lambda each: -each.predicted))
    return ParameterWorth(name=name, value=best[name], own=own, alternatives=ranked)


def _measured(posterior: Posterior, config: Config) -> tuple[float, ...]:
    record = posterior.records.get(identity(config))
    return record.measured if record else ()


def _others(posterior: Posterior, best: Config, name: str, current: Config) -> dict[Hashable, Config]:
    """Return legal configs that differ from ``best`` in one parameter: its choices, the user's own, measured ones."""
    space = posterior.space
    home = space.encode(best)
    places = [place for place, dimension in enumerate(space.dimensions) if dimension.parameter == name]
    chosen = set(places)
    rest = tuple(index for place, index in enumerate(home) if place not in chosen)
    vectors = [
        tuple(choice if place in chosen else index for place, index in enumerate(home))
        for choice in _some(len(space.dimensions[places[0]].choices))
    ]
    vectors += [
        vector
        for vector in _encoded(space, [current, *posterior.measured()], home, chosen)
        if tuple(index for place, index in enumerate(vector) if place not in chosen) == rest
    ]
    found = (space.decode(vector) for vector in dict.fromkeys(vectors) if vector != home)
    configs = {identity(config): config for config in found if config is not None}
    configs.pop(identity(best), None)  # of what is idle there, other choices mean the same
    return configs


def _encoded(
    space: SearchSpace, configs: list[Config], home: tuple[int, ...], chosen: set[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the choices of configs; of the first, the user's own, those of one parameter in place of ``home``'s."""
    for number, config in enumerate(configs):
        if space.why_illegal(config) is not None:
            continue
        vector = space.encode(config)
        yield tuple(vector[p] if p in chosen else home[p] for p in range(len(home))) if number == 0 else vector


def _some(n_choices: int) -> list[int]:
    stride = -(-n_choices // _MOST_CHOICES)
    return sorted({*range(0, n_choices, stride), n_choices - 1})


def _weight(worth: ParameterWorth) -> float:
    """Return how little is left with the worst of the alternatives; 1 where there is none."""
    return min((each.predicted for each in worth.alternatives), default=1.0)


def _told(other: Alternative) -> str:
    measured = f"; measured {other.measured:.2f}x" if other.measured is not None else ""
    risk = "; may not fit" if other.probability_to_fit < 0.5 else ""
    return f"{other.predicted:.2f}x with {_short(other.value)} ({other.low:.2f}x to {other.high:.2f}x{measured}{risk})"


def _short(value: Value) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if len(set(value)) == 1:
        return f"{value[0]} in every layer"
    counts = {entry: value.count(entry) for entry in dict.fromkeys(value)}
    return " and ".join(f"{entry} in {count}" for entry, count in counts.items()) + " layers"
