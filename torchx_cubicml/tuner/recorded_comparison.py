"""Comparison of the fastest recorded config with the user's own, for launches that no finished tune has compared."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.noise import repeat_noise
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.tuner.comparison import Repeats, compare

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner.comparison import Comparison


def fastest_measured(trials: Sequence[Trial], *, objective: str) -> Trial | None:
    """Return a trial of the config of highest median throughput; ``None`` if no config was measured.

    Args:
        trials: of one workload.
        objective: name of the throughput.
    """
    groups: defaultdict[object, list[tuple[float, Trial]]] = defaultdict(list)
    for trial in trials:
        value = trial.throughput(objective)
        if value is not None and trial.config:
            groups[config_key(trial.config)].append((value, trial))
    best = max(groups.values(), key=lambda group: median(value for value, _ in group), default=None)
    return max(best, key=lambda pair: pair[1].started_at)[1] if best is not None else None


def recorded_comparison(
    trials: Sequence[Trial], *, objective: str, baselines: Collection[str] = (), elsewhere: Sequence[Trial] = ()
) -> Comparison | None:
    """Compare the fastest recorded config with the user's own; ``None`` where either is not known or not measured.

    The fastest is chosen by the same measurements that are compared, so the gain is on the high side.

    Args:
        trials: of one workload.
        objective: name of the throughput.
        baselines: ids of launches of the user's own config. Without any that was measured, it is the config of the
            latest measured launch that ran as typed.
        elsewhere: trials of other workloads, for the noise from run to run.
    """
    own = _own_config(trials, objective, baselines)
    best = fastest_measured(trials, objective=objective) if own is not None else None
    if best is None or own is None:
        return None
    sides = []
    for config in (own, best.config):
        key = config_key(config)
        alike = [trial for trial in trials if trial.config and config_key(trial.config) == key]
        sides.append(Repeats.of(config, alike, objective=objective))
    noise = repeat_noise(trials, objective=objective, elsewhere=elsewhere)
    return compare(sides[0], sides[1], objective=objective, noise=noise)


def _own_config(trials: Sequence[Trial], objective: str, baselines: Collection[str]) -> Config | None:
    measured = [trial for trial in trials if trial.config and trial.throughput(objective) is not None]
    tuned = [trial for trial in measured if trial.launch_id and trial.launch_id in baselines]
    typed = tuned or [trial for trial in measured if trial.origin is Origin.USER]
    return max(typed, key=lambda trial: trial.started_at).config if typed else None
