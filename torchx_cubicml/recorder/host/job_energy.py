"""Power of the whole job in its measurement: what this process reads, added to what the other ranks post."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.host.energy_counters import GPUS, find_counters
from torchx_cubicml.recorder.host.energy_meter import EnergyMeter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.recorder.ranks.peers import RankWork
    from torchx_cubicml.recorder.steps.training import Training
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.settings import JobEnvironment

_FIRST_STEPS = 8  # before the first reading


class JobEnergy:
    """Energy of this process's part of a job; nothing where no counter can be read.

    Args:
        job: environment of this rank.
    """

    def __init__(self, job: JobEnvironment) -> None:
        self._job = job
        self._meter: EnergyMeter | None = None
        self._has_looked = False
        self._steps = 0
        self._training_number = 1

    @property
    def watts(self) -> dict[str, float]:
        """Mean power of each counter of this process up to now; empty where unknown."""
        return self._meter.watts(self._steps) if self._meter is not None else {}

    def reported(self, training: Training) -> None:
        """Note that a report is due; the meter begins with the first one after some steps."""
        self._steps = training.steps
        if self._steps < _FIRST_STEPS:
            return
        if not self._has_looked:
            self._has_looked = True
            counters = find_counters(local_rank=self._job.local_rank)
            if counters is not None:
                self._meter = EnergyMeter(counters=counters, progress=lambda: (training.steps, training.notes.left))
                self._meter.begin()
        if self._meter is not None:
            number = training.coverage.number
            if number != self._training_number:
                self._training_number = number
                self._meter.begin_anew()
            self._meter.mark(self._steps)

    def stop(self) -> None:
        """End the meter."""
        if self._meter is not None:
            self._meter.stop()

    def lacks(self, work: RankWork) -> bool:
        """Return whether this process knows its power and another one has yet to post its own."""
        own = self.watts
        return bool(own) and self._total([own, *work.watts]) is None

    def added_to(self, measured: Measurement | None, others: RankWork | None) -> Measurement | None:
        """Return a measurement with the power of the whole job, where each part of it is known.

        Args:
            measured: of this process, which leads.
            others: values that the other ranks have posted; ``None`` where they are unknown.
        """
        own = self.watts
        if measured is None or not own or self._meter is None or (others is None and self._job.world_size > 1):
            return measured
        total = self._total([own, *(others.watts if others is not None else ())])
        return measured if total is None else replace(measured, power_watts=total, power_of=self._meter.counters.kind)

    def _total(self, reports: Sequence[Mapping[str, float]]) -> float | None:
        """Return the watts of the whole job; ``None`` unless each of its parts is reported.

        Each rank reads its own GPU, and the first rank of each node the packages. A counter that two ranks read, such
        as that of a GPU they share, counts once.
        """
        is_of_gpus = self._meter is not None and self._meter.counters.kind == GPUS
        if len(reports) < (self._job.world_size if is_of_gpus else self._job.nnodes):
            return None
        watts = {key: value for report in reports for key, value in report.items()}
        return sum(watts.values()) or None
