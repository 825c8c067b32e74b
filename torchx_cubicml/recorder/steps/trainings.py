"""Several trainings of one process, one after the other: which of them is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.event import MEASURED_TRAINING

if TYPE_CHECKING:
    from torchx_cubicml.recorder.model.inspection import ModelInspection
    from torchx_cubicml.recorder.steps.forwards import Work
    from torchx_cubicml.recorder.steps.step_times import StepTimes

# A later training is reported if it took so much longer. Ranks measure time alone, and must choose the same training.
_LONGER = 1.25
_MOST_SIZES = 4  # of the batches of one training, whose changes say nothing beyond
_UNLIKE_STEPS = (
    4  # of another size under a new optimizer, which make another training; an epoch may end with a small one
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTraining:
    """One training of this process.

    Args:
        number: its place among all trainings of the process, >= 1.
        inspection: its model.
        times: its steps.
    """

    number: int
    inspection: ModelInspection
    times: StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Part of the trainings of a process that its record measures.

    Args:
        number: place of the measured training, >= 1.
        trainings: number of trainings, one after the other.
        steps: steps of the measured one.
        all_steps: steps of all.
    """

    number: int
    trainings: int
    steps: int
    all_steps: int

    def facts(self) -> dict[str, int]:
        """Return the facts of the record; none if there was one training."""
        return {"trainings": self.trainings, MEASURED_TRAINING: self.number} if self.trainings > 1 else {}

    def text(self) -> str:
        """Return a sentence for the user; empty if there was one training.

        >>> Coverage(number=2, trainings=2, steps=900, all_steps=1000).text()
        '2 trainings ran one after the other; the record measures number 2: 900 of the 1000 steps seen'
        """
        if self.trainings == 1:
            return ""
        steps = f"{self.steps} of the {self.all_steps} steps seen"
        return f"{self.trainings} trainings ran one after the other; the record measures number {self.number}: {steps}"


class EarlierTrainings:
    """Trainings of this process that have ended: the longest one, and the number of steps of all.

    ``inspected`` trainings have begun whose model was inspected, and ``number`` is the place of the current one.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.longest: OneTraining | None = None
        self.inspected = self.number = 1
        self._is_measured = False  # the longest one
        self._decided_at = 0, 0  # number and steps of the current training
        self._takes_current = True

    def end(self, training: OneTraining, *, steps: int, uninspected: int) -> None:
        """Note that a training has ended, and another one begins.

        Args:
            training: the training that has ended.
            steps: steps counted in all trainings up to now.
            uninspected: trainings whose steps were only counted.
        """
        training.times.read()
        self.longest = self.reported(training)
        self._is_measured = self.longest.times.steady() is not None
        self.steps = steps
        self.inspected += 1
        self.number = self.inspected + uninspected

    def reported(self, current: OneTraining) -> OneTraining:
        """Return the training that took the most time, of those with a steady state; of nearly equal ones the first."""
        longest = self.longest
        if longest is None:
            return current
        now = current.number, current.times.steps
        if self._decided_at != now:
            self._decided_at, self._takes_current = now, self._is_better(current, longest)
        return current if self._takes_current else longest

    def _is_better(self, current: OneTraining, longest: OneTraining) -> bool:
        is_longer = current.times.typical_s() >= _LONGER * longest.times.typical_s()
        if is_longer == self._is_measured:
            has_steady_state = current.times.steady() is not None
            if has_steady_state != self._is_measured:
                return has_steady_state
        return is_longer

    def coverage(self, current: OneTraining, *, uninspected: int, short_steps: int) -> Coverage:
        """Return the reported part of the trainings.

        Args:
            current: the current training.
            uninspected: trainings whose steps were only counted.
            short_steps: steps of a last training that was too short to be followed; 0 without one.
        """
        reported = self.reported(current)
        return Coverage(
            number=reported.number,
            trainings=self.inspected + uninspected + bool(short_steps),
            steps=reported.times.steps,
            all_steps=self.steps + current.times.steps + short_steps,
        )


class WorkChange:
    """Samples per step of one training, and whether a new optimizer begins another training with other batches."""

    def __init__(self) -> None:
        self._sizes: set[float] = set()
        self._unlike: int | None = None

    def renew(self) -> None:
        """Note that a new optimizer has replaced the leading one on the same model."""
        self._unlike = 0 if self._sizes else None

    def saw(self, work: Work) -> bool:
        """Note the work of a step; return whether the optimizer has begun another training."""
        size = work.samples if work.samples is not None else work.tokens
        if size is None:
            return False
        if self._unlike is None or size in self._sizes or len(self._sizes) > _MOST_SIZES:
            self._unlike = None
            if len(self._sizes) <= _MOST_SIZES:
                self._sizes.add(size)
            return False
        self._unlike += 1
        return self._unlike >= _UNLIKE_STEPS
