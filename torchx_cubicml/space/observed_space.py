"""Search space of recorded launches, for a workload whose space file is not at hand: the values that were launched."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.parameter import Parameter
from torchx_cubicml.space.search_space import SearchSpace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Scalar, Value


def observed_space(trials: Sequence[Trial], *, objective: str) -> SearchSpace | None:
    """Return the space of the recorded values of each parameter; ``None`` where no parameter has two.

    ``None``, too, where the values of one are of several kinds or lengths. Nothing tells which combinations are legal,
    so all of them are. A list of values is one value per layer.

    Args:
        trials: of one workload. Those of the most frequent set of parameters count.
        objective: name of the throughput.
    """
    names = Counter(tuple(sorted(trial.config)) for trial in trials if trial.config)
    if not names:
        return None
    chosen = names.most_common(1)[0][0]
    configs = [trial.config for trial in trials if tuple(sorted(trial.config)) == chosen]
    order = list(configs[0])
    try:
        found = [_parameter(name, [config[name] for config in configs]) for name in order]
        space = SearchSpace(parameters=tuple(found), objective=objective)
    except SpaceError:
        return None
    return space if any(len(parameter.choices) > 1 for parameter in found) else None


def _parameter(name: str, values: Sequence[Value]) -> Parameter:
    """Return a parameter with the values as its choices.

    Raises:
        SpaceError: the values are of several kinds, or of several lengths.
    """
    lists = [value for value in values if isinstance(value, tuple)]
    if not lists:
        return Parameter(name=name, choices=_distinct(value for value in values if not isinstance(value, tuple)))
    lengths = {len(value) for value in lists}
    if len(lists) < len(values) or len(lengths) > 1:
        raise SpaceError(f"parameters.{name}: recorded values are of several lengths")
    return Parameter(name=name, choices=_distinct(entry for value in lists for entry in value), per_layer=lengths.pop())


def _distinct(values: Iterable[Scalar]) -> tuple[Scalar, ...]:
    found = dict.fromkeys(values)
    return tuple(sorted(found, key=lambda value: (isinstance(value, str), value)))
