"""Scale of programs: the best measured throughput at each number of devices, of workloads that differ in it alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import config_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial

_OF_SCALE = ("world_size", "nnodes", "nproc_per_node")  # facts in which the workloads of one line may differ
_ASIDE = ("program", "project")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """Best measured trial of one program at one scale.

    Args:
        devices: number of processes of the job.
        throughput: of the whole job.
        efficiency: throughput per device over that at the smallest scale of the line.
        configs: number of measured configs at this scale.
        trial: the best one.
    """

    devices: int
    throughput: float
    efficiency: float
    configs: int
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleLine:
    """Points of workloads that agree in all facts but those of scale and the project.

    Args:
        program: name of the program.
        facts: other facts that the workloads share, as text.
        objective: name of the throughput.
        points: by devices, at least two.
    """

    program: str
    facts: str
    objective: str
    points: Sequence[ScalePoint]

    @property
    def configs(self) -> int:
        """Number of measured configs of all points."""
        return sum(point.configs for point in self.points)


def scale_lines(groups: Iterable[tuple[str, Sequence[Trial]]]) -> list[ScaleLine]:
    """Return the lines of at least two scales, those of most scales first, then those of most measured configs.

    Args:
        groups: objective and trials of each workload.
    """
    found: defaultdict[tuple[str, str], defaultdict[int, list[tuple[float, Trial]]]]
    found = defaultdict(lambda: defaultdict(list))
    for objective, trials in groups:
        if objective not in OBJECTIVES or not trials:
            continue
        facts = {name: value for name, value in trials[0].workload.items() if name not in _OF_SCALE}
        key = (objective, config_text({name: value for name, value in sorted(facts.items()) if name != "project"}))
        for trial in trials:
            devices, rate = trial.fact("world_size"), trial.throughput(objective)
            if rate is not None and isinstance(devices, int) and not isinstance(devices, bool) and devices > 0:
                found[key][devices].append((rate, trial))
    lines = [
        _line(by_devices, objective=objective) for (objective, _), by_devices in found.items() if len(by_devices) > 1
    ]
    return sorted(lines, key=lambda line: (-len(line.points), -line.configs))


def _line(by_devices: dict[int, list[tuple[float, Trial]]], *, objective: str) -> ScaleLine:
    best = {devices: max(rates, key=lambda pair: pair[0]) for devices, rates in sorted(by_devices.items())}
    smallest = min(best)
    reference = best[smallest][0] / smallest
    points = [
        ScalePoint(
            devices=devices,
            throughput=rate,
            efficiency=rate / devices / reference,
            configs=len({config_text(trial.config) for _, trial in by_devices[devices]}),
            trial=trial,
        )
        for devices, (rate, trial) in best.items()
    ]
    workload = points[0].trial.workload
    facts = {name: value for name, value in workload.items() if name not in (*_OF_SCALE, *_ASIDE)}
    return ScaleLine(
        program=_shown(str(workload.get("program") or "a program without a name")),
        facts=_shown(config_text(facts)),
        objective=objective,
        points=points,
    )


def _shown(text: str) -> str:
    return printable(mask(text))
