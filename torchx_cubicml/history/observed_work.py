"""Work of groups of launches, as it was observed: sizes, and facts, speed and memory of each config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.records.objective_units import OBJECTIVES, RATES
from torchx_cubicml.records.standard_names import WORKLOAD_SIZES
from torchx_cubicml.records.workload import about_equal, recency, value_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.space import SearchSpace

_SIZES = tuple(sorted({*WORKLOAD_SIZES, "n_params", "n_trainable_params", "n_experts", "n_active_experts"}))
_OF_CONFIG = (
    *("precision", "float8_modules", "compile", "activation_checkpointing", "checkpointed_modules", "cpu_offload"),
    *("optimizer", "optimizer_fused", "optimizer_foreach", "sharding_strategy", "root_sharding_strategy"),
    *("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "dp_degree", "tp_degree", "pp_degree"),
)
"""Observed facts that two launches with the same config share if they do the same work."""
_SPEED_RATIO = 1.5  # of two launches with the same config, from which a slow node does not explain the difference
_MEMORY_RATIO = {"cpu": 1.3}  # likewise, of the peak memory of one process
_DEVICE_MEMORY_RATIO = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigWork:
    """Observations of launches of one config: latest facts, and medians.

    Args:
        facts: observed facts of the config.
        is_measured: whether a launch was measured.
        speeds: median throughput in units of the objective, and in optimizer steps; ``None`` where unknown.
        memory_gib: median peak memory of one process; ``None`` where unknown.
        device: kind of device; empty where unknown.
    """

    facts: Mapping[str, Value]
    is_measured: bool
    speeds: tuple[float | None, ...]
    memory_gib: float | None
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSummary:
    """Observed work of several launches.

    Args:
        sizes: latest observed sizes of the model and its input.
        configs: what each config showed.
        is_counted: whether the samples or tokens of each measured launch were counted; steps do not tell a batch.
    """

    sizes: Mapping[str, Value]
    configs: Mapping[Hashable, ConfigWork]
    is_counted: bool


class ObservedWork:
    """Comparison of observed work.

    Args:
        space: facts that its parameters set are no sign of other work.
    """

    def __init__(self, space: SearchSpace) -> None:
        tuned = {name for item in space.parameters for name in (item.name, item.observed_as) if name}
        self._sizes = tuple(name for name in _SIZES if name not in tuned)
        self._objective = space.rate

    def of(self, trials: Sequence[Trial]) -> WorkSummary:
        """Return the observed facts of launches."""
        by_config: dict[Hashable, list[Trial]] = {}
        for trial in trials:
            by_config.setdefault(_key(trial.config), []).append(trial)
        return WorkSummary(
            sizes=_latest(trials, self._sizes),
            configs={key: self._of_config(found) for key, found in by_config.items()},
            is_counted=all(any(map(each.throughput, RATES)) for trial in trials if (each := trial.measurement)),
        )

    def difference(self, one: WorkSummary, other: WorkSummary) -> str | None:
        """Return a difference between two works, in words.

        Empty if they are the same; ``None`` if too little was observed to tell.
        """
        if found := _differing(one.sizes, other.sizes, self._sizes):
            return found
        is_paired = False
        for key in one.configs.keys() & other.configs.keys():
            first, second = one.configs[key], other.configs[key]
            if found := _difference_of_config(first, second):
                return found
            is_paired = is_paired or (first.is_measured and second.is_measured)
        return "" if is_paired else None

    def _of_config(self, trials: Sequence[Trial]) -> ConfigWork:
        measured = [trial.measurement for trial in trials if trial.measurement is not None]
        return ConfigWork(
            facts=_latest(trials, _OF_CONFIG),
            is_measured=bool(measured),
            speeds=tuple(
                _median(each.throughput(unit) for each in measured) for unit in (self._objective, OBJECTIVES[-1])
            ),
            memory_gib=_median(each.peak_gib for each in measured),
            device=str(_latest(trials, ("device",)).get("device", "")),
        )


def _difference_of_config(one: ConfigWork, other: ConfigWork) -> str:
    if found := _differing(one.facts, other.facts, _OF_CONFIG):
        return found
    paired = [pair for pair in zip(one.speeds, other.speeds, strict=True) if all(pair)]
    if paired and _ratio(*paired[0]) > _SPEED_RATIO:
        return "the same config had another speed"
    if _ratio(one.memory_gib, other.memory_gib) > _MEMORY_RATIO.get(other.device, _DEVICE_MEMORY_RATIO):
        return "the same config needed another amount of memory"
    return ""


def _differing(one: Mapping[str, Value], other: Mapping[str, Value], names: Iterable[str]) -> str:
    both = [name for name in names if name in one and name in other]
    differing = (name for name in both if not about_equal(one[name], other[name]))
    return next((f"{name} was {one[name]}, not {other[name]}" for name in differing), "")


def _key(config: Config) -> Hashable:
    return frozenset((name, value_key(value)) for name, value in config.items())


def _latest(trials: Iterable[Trial], names: Iterable[str]) -> dict[str, Value]:
    """Return the latest observed value of each fact."""
    ordered = sorted(trials, key=recency)
    return {name: trial.observed[name] for trial in ordered for name in names if name in trial.observed}


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None


def _ratio(one: float | None, other: float | None) -> float:
    return 1.0 if not one or not other else math.exp(abs(math.log(one / other)))
