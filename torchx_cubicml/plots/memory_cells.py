"""Cells of the memory boundary: the configs that differ from one in two parameters, with their memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from torchx_cubicml.advisor.posterior import with_pinned_choices
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.records.memory_failure import proves_too_large
from torchx_cubicml.records.value_text import config_text, entries_text
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.records.trial import Config, Trial

_MOST_CHOICES = 12  # of one parameter; a longer list is sampled at equal strides


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCells:
    """Cells of the figure.

    Args:
        names: of the one or two parameters.
        cells: rows of ``memory_boundary``.
        order: of the values, as ``memory_boundary`` wants it.
        fixed: all other parameters, which the configs have in common.
    """

    names: tuple[str, ...]
    cells: Sequence[Mapping[str, Any]]
    order: Mapping[str, Sequence[str]]
    fixed: Mapping[str, object]


def memory_cells(study: Study, names: Sequence[str] = ()) -> MemoryCells:
    """Return the cells around the user's own config.

    Args:
        study: fitted to the trials.
        names: of one or two free parameters; by default the two that change the probability to fit most.

    Raises:
        SpaceError: a name is none of a free parameter, there are more than two, or the own config is not in the space.
    """
    posterior = study.posterior
    current = with_pinned_choices(posterior, study.current)
    free = dict.fromkeys(each.parameter for each in posterior.space.dimensions if len(each.choices) > 1)
    unknown = [name for name in names if name not in free]
    if unknown or len(names) > 2 or not free:
        raise SpaceError(
            f"a plot of memory needs one or two of the free parameters {', '.join(free) or '(there is none)'}, "
            f"got {', '.join(names) or 'none'}"
        )
    with one_thread():
        chosen = tuple(names) or _most_telling(posterior, current, list(free))
        configs = _grid(posterior, current, chosen)
        fits = posterior.forecast(configs).fits.tolist()
    measured = _measured_texts(posterior)
    entries = {each.parameter: each.entries for each in posterior.space.dimensions}
    texts = [[entries_text(config[name], entries[name]) for name in chosen] for config in configs]
    cells = [
        {
            "x": values[0],
            "y": values[-1] if len(chosen) > 1 else "",
            "fits": probability,
            "measured": measured.get(identity(config), ""),
            "config": config_text(config),
        }
        for config, values, probability in zip(configs, texts, fits, strict=True)
    ]
    order = {
        axis: list(dict.fromkeys(cell[axis] for cell in _sorted(cells, configs, chosen, axis))) for axis in ("x", "y")
    }
    same = {name for name in current if len({repr(config[name]) for config in configs}) == 1}
    fixed = {name: value for name, value in current.items() if name in same and name not in chosen}
    return MemoryCells(names=chosen, cells=cells, order=order, fixed=fixed)


def _most_telling(posterior: Posterior, current: Config, names: Sequence[str]) -> tuple[str, ...]:
    """Return the two parameters whose values change the probability to fit most, alone."""
    spreads = {}
    for name in names:
        fits = posterior.forecast(_grid(posterior, current, (name,))).fits
        spreads[name] = float(fits.max() - fits.min())
    return tuple(sorted(names, key=lambda name: -spreads[name])[:2])


def _grid(posterior: Posterior, current: Config, names: Sequence[str]) -> list[Config]:
    """Return the legal configs with other choices of some parameters, one choice for all entries of each."""
    space = posterior.space
    home = list(space.encode(current))
    places = [[i for i, each in enumerate(space.dimensions) if each.parameter == name] for name in names]
    vectors = [home]
    for chosen in product(*(_sampled(len(space.dimensions[each[0]].choices)) for each in places)):
        vector = list(home)
        for indices, choice in zip(places, chosen, strict=True):
            for index in indices:
                vector[index] = choice
        vectors.append(vector)
    found = [space.decode(vector) for vector in vectors]
    return list({identity(config): config for config in found if config is not None}.values())


def _sampled(n_choices: int) -> list[int]:
    stride = -(-n_choices // _MOST_CHOICES)
    return sorted({*range(0, n_choices, stride), n_choices - 1})


def _sorted(
    cells: Sequence[dict[str, Any]], configs: Sequence[Config], names: Sequence[str], axis: str
) -> list[dict[str, Any]]:
    """Return the cells by the value of one axis: numbers by size, all others in the order of the space."""
    name = names[0] if axis == "x" else names[-1]
    pairs = list(zip(cells, configs, strict=True))
    if all(isinstance(config[name], int | float) for config in configs):
        pairs.sort(key=lambda pair: pair[1][name])
    return [cell for cell, _ in pairs]


def _measured_texts(posterior: Posterior) -> dict[Hashable, str]:
    """Return identity of a config -> words on the memory of its launches."""
    names = {parameter.name for parameter in posterior.space.parameters}
    launched: defaultdict[Hashable, list[Trial]] = defaultdict(list)
    for trial in posterior.data.own:
        config = {name: value for name, value in trial.config.items() if name in names}
        launched[identity(with_pinned_choices(posterior, config))].append(trial)
    return {key: _words(trials) for key, trials in launched.items()}


def _words(trials: Sequence[Trial]) -> str:
    """Return the largest peak of the launches of one config, and whether any ran out of memory."""
    peaks = [peak for trial in trials if trial.measurement is not None and (peak := trial.measurement.peak_gib)]
    ran = any(trial.measurement is not None for trial in trials)
    texts = [f"{max(peaks):.3g} GiB" if peaks else "ran" if ran else ""]
    texts.append("too large" if any(map(proves_too_large, trials)) else "")
    return ", ".join(filter(None, texts))
