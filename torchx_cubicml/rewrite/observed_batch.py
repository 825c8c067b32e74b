"""Faster launches of another global batch size than that of a command."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import per_cost_text
from torchx_cubicml.records.objective_units import OBJECTIVES, PER_COST
from torchx_cubicml.records.workload import value_key
from torchx_cubicml.space import computed_global_batch_size
from torchx_cubicml.space.constraints import IN_BATCH

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import SearchSpace

_WORTH_SAYING = 1.05  # ratio of throughputs from which a launch of another batch is mentioned
_BATCH = "global_batch_size"


def faster_batch_note(space: SearchSpace, own: Iterable[Trial], *, workload: Workload, current: Config) -> str:
    """Return a message if launches of another global batch size were faster; empty if none was.

    Args:
        space: the user's space file.
        own: trials of the workload, in the terms of the space file.
        workload: facts of the launch.
        current: the user's own config.
    """
    typed = computed_global_batch_size(workload=workload, current=current)
    speeds: defaultdict[tuple[int, Hashable], list[float]] = defaultdict(list)
    for trial in own:
        throughput = trial.throughput(space.objective)
        batch = computed_global_batch_size(workload=trial.workload, current=trial.config)
        if throughput is not None and batch is not None:
            speeds[batch, _key(trial.config, trial.config)].append(throughput)
    means = {key: fmean(found) for key, found in speeds.items()}
    kept = [mean for (batch, _), mean in means.items() if batch == typed]
    others = {key: mean for key, mean in means.items() if key[0] != typed}
    if typed is None or not kept or not others or _is_permitted(space):
        return ""
    (batch, _), fastest = max(others.items(), key=lambda pair: pair[1])
    if fastest < _WORTH_SAYING * max(kept):
        return ""
    ratio = f"{fastest / max(kept):.2f}x"
    words = f"was {ratio} as fast as the fastest"
    if space.objective in PER_COST:
        words = f"had {ratio} the {space.objective} of the best"
    elif space.objective not in OBJECTIVES:
        words = f"was {ratio} as good {per_cost_text(space.objective)} as the best"
    return (
        f"a launch with a global batch size of {batch} {words} with yours, {typed}; it is another training, so yours "
        f"stays ({_cure(space)} would allow it)"
    )


def _is_permitted(space: SearchSpace) -> bool:
    is_kept = any(item.derive is not None and _BATCH in item.derive.names for item in space.parameters)
    return not is_kept and any(item.changes_training for item in space.parameters if item.name in IN_BATCH)


def _cure(space: SearchSpace) -> str:
    derived = [item for item in space.parameters if item.derive is not None and _BATCH in item.derive.names]
    if derived:
        name = derived[0].label or derived[0].name
        return f"changes_training = true on {name}, with choices in place of derive,"
    names = [item.label or item.name for item in space.parameters if item.name in IN_BATCH]
    return f"changes_training = true on {' and '.join(names) or 'what changes it'}"


def _key(config: Config, names: Iterable[str]) -> Hashable:
    return tuple(sorted((name, value_key(config[name])) for name in names if name in config))
