"""Sensitivity of the best config to each parameter: predicted, and measured where trials differ in it alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.posterior import ranked, with_pinned_choices
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.space import SearchSpace

    _Compared = tuple[Config, tuple[float, float, float] | None, float]  # its ratio to the best one; whether it fits

_MAX_CHOICES = 6  # of one parameter; a longer list is sampled at equal strides


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The best config with another value of one parameter.

    Args:
        value: of the parameter.
        predicted: ratio of its throughput to that of the best config: 0.9 is ten per cent slower.
        low: lower end of the 80 % interval of that ratio.
        high: upper end.
        measured: the same ratio of mean measurements; ``None`` where it was not measured.
        n_measured: number of its measurements.
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
class ParameterSensitivity:
    """Sensitivity of the best config to one parameter.

    Args:
        name: of the parameter.
        value: in the best config.
        own: the alternative with the value of the user's own config; ``None`` where that is the best config's, or not
            among ``alternatives``.
        alternatives: other values, the fastest predicted first.
        is_ineffective: whether it has no effect, as observed and measured, so that it keeps its value.
        entries: what the entries of a value belong to, in words.
    """

    name: str
    value: Value
    own: Alternative | None
    alternatives: tuple[Alternative, ...]
    is_ineffective: bool = False
    entries: str = "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownVectors:
    """Choice indices of configs that are legal: the user's own one, if it is, and those that were measured."""

    own: Sequence[tuple[int, ...]]
    measured: Sequence[tuple[int, ...]]


def sensitivity(study: Study, *, winner: Config | None = None) -> tuple[ParameterSensitivity, ...]:
    """Return the sensitivity to each parameter at ``winner``, the largest first.

    Each parameter is set to its other choices while all others stay fixed (derived ones follow). A per-layer value is
    compared with one choice for all layers, and with the user's own.

    Args:
        study: fitted to the trials.
        winner: by default the measured config of highest posterior mean.

    Returns:
        Empty where no legal config of the workload was measured yet, or ``winner`` is not legal.
    """
    posterior = study.posterior
    with one_thread():
        trusted = ranked(posterior).trusted
        if not trusted:
            return ()
        best = trusted[0] if winner is None else with_pinned_choices(posterior, winner)
        if best not in posterior.space:
            return ()
        names = dict.fromkeys(dimension.parameter for dimension in posterior.space.dimensions)
        own, measured = (_legal_vectors(posterior.space, each) for each in ([study.current], posterior.measured()))
        vectors = _KnownVectors(own=own, measured=measured)
        configs = {name: [*_alternatives(posterior.space, best, name, vectors).values()] for name in names}
        alternatives = iter(_predicted(posterior, best, [config for each in configs.values() for config in each]))
        found = {name: list(islice(alternatives, len(each))) for name, each in configs.items()}
    effects = [_sensitivity_to(posterior, best, name, study.current, each) for name, each in found.items()]
    return tuple(sorted(effects, key=_least_ratio))


def _predicted(posterior: Posterior, best: Config, configs: Sequence[Config]) -> list[_Compared]:
    """Return each config beside the best one; one forecast of all of them costs little more than that of one."""
    if not configs:
        return []
    gains = posterior.gains(configs, best).intervals()
    fits = posterior.forecast(configs).fits.tolist()
    return list(zip(configs, gains, fits, strict=True))


def _sensitivity_to(
    posterior: Posterior, best: Config, name: str, current: Config, compared: Sequence[_Compared]
) -> ParameterSensitivity:
    best_throughputs = _measured(posterior, best)
    found = []
    for config, gain, probability in compared:
        throughputs = _measured(posterior, config)
        if gain is None:
            continue
        low, predicted, high = gain
        found.append(
            Alternative(
                value=config[name],
                predicted=predicted,
                low=low,
                high=high,
                measured=fmean(throughputs) / fmean(best_throughputs) if throughputs and best_throughputs else None,
                n_measured=len(throughputs),
                probability_to_fit=probability,
            )
        )
    return ParameterSensitivity(
        name=name,
        value=best[name],
        own=next((each for each in found if each.value == current.get(name)), None),
        alternatives=tuple(sorted(found, key=lambda each: -each.predicted)),
        is_ineffective=bool(compared) and name in posterior.ineffective,
        entries=next(each.entries for each in posterior.space.dimensions if each.parameter == name),
    )


def _measured(posterior: Posterior, config: Config) -> tuple[float, ...]:
    record = posterior.outcomes.get(identity(config))
    return record.measured if record else ()


def _alternatives(space: SearchSpace, best: Config, name: str, known: _KnownVectors) -> dict[Hashable, Config]:
    """Return legal configs that differ from ``best`` in one parameter: other choices, the user's own, measured ones."""
    home = space.encode(best)
    indices = [index for index, dimension in enumerate(space.dimensions) if dimension.parameter == name]
    varied = set(indices)
    others = [index for index in range(len(home)) if index not in varied]
    vectors = [
        tuple(other if index in varied else choice for index, choice in enumerate(home))
        for other in _sampled_choices(len(space.dimensions[indices[0]].choices))
    ]
    vectors += [
        tuple(vector[index] if index in varied else choice for index, choice in enumerate(home)) for vector in known.own
    ]
    vectors += [vector for vector in known.measured if all(vector[index] == home[index] for index in others)]
    found = (space.decode(vector) for vector in dict.fromkeys(vectors) if vector != home)
    configs = {identity(config): config for config in found if config is not None}
    configs.pop(identity(best), None)  # all choices of an idle parameter are the same config
    return configs


def _legal_vectors(space: SearchSpace, configs: Iterable[Config]) -> list[tuple[int, ...]]:
    """Return the choice indices of the legal ones among some configs."""
    return [space.encode(config) for config in configs if space.why_illegal(config) is None]


def _sampled_choices(n_choices: int) -> list[int]:
    stride = -(-n_choices // _MAX_CHOICES)
    return sorted({*range(0, n_choices, stride), n_choices - 1})


def _least_ratio(effect: ParameterSensitivity) -> float:
    """Return the predicted ratio of the slowest alternative; 1 where there is none."""
    return min((each.predicted for each in effect.alternatives), default=1.0)
