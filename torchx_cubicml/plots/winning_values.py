"""Values that win across workloads: how often a value is in the best config, and how often it would be by chance."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.workload import value_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value

_FEWEST = 2  # workloads in which a value competed with another


@dataclass(frozen=True, slots=True, kw_only=True)
class WinningValue:
    """One value of a parameter over several workloads.

    Args:
        parameter: its name.
        value: the value.
        wins: workloads whose best config has it.
        workloads: workloads in which it was measured beside another value of the parameter.
        by_chance: wins to expect if each measured config were equally likely the best.
    """

    parameter: str
    value: Value
    wins: int
    workloads: int
    by_chance: float


def winning_values(groups: Iterable[tuple[str, Config | None, Sequence[Trial]]]) -> list[WinningValue]:
    """Return the values by parameter, those of most workloads first, and within one by their wins.

    Args:
        groups: objective, best config and trials of each workload.
    """
    wins: defaultdict[tuple[str, Hashable], int] = defaultdict(int)
    seen: defaultdict[tuple[str, Hashable], int] = defaultdict(int)
    chance: defaultdict[tuple[str, Hashable], float] = defaultdict(float)
    values: dict[tuple[str, Hashable], Value] = {}
    for objective, best, trials in groups:
        configs = _measured_configs(trials, objective)
        for name in best or {}:
            counts = Counter(value_key(config[name]) for config in configs if name in config)
            if best is None or len(counts) < _FEWEST:
                continue
            values |= {(name, value_key(config[name])): config[name] for config in configs if name in config}
            wins[name, value_key(best[name])] += 1
            for key, count in counts.items():
                seen[name, key] += 1
                chance[name, key] += count / counts.total()
    found = [
        WinningValue(
            parameter=name, value=values[name, key], wins=wins[name, key], workloads=count, by_chance=chance[name, key]
        )
        for (name, key), count in seen.items()
        if count >= _FEWEST
    ]
    most = {each.parameter: each.workloads for each in sorted(found, key=lambda each: each.workloads)}
    return sorted(found, key=lambda each: (-most[each.parameter], each.parameter, -each.wins, each.by_chance))


def _measured_configs(trials: Sequence[Trial], objective: str) -> list[Config]:
    """Return each measured config once."""
    measured = [trial.config for trial in trials if trial.throughput(objective) is not None]
    return list(
        {tuple((name, value_key(config[name])) for name in sorted(config)): config for config in measured}.values()
    )
