"""Objective "soonest done": the time from submission until a job of a known amount of work is done."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB_UNITS = ("steps", "samples", "tokens")
QUEUE_S = "queue_s"
"""Fact of a trial: seconds from the submission by a tune to the start of the program."""
OVERHEADS = (QUEUE_S, "startup_s", "compile_s", "warmup_s")
"""Parts of the time of a job besides its steps at their steady pace."""
MOST_OVERHEAD_S = 1e9
"""Seconds of an overhead, 30 years; a record with more is not believed."""
STEPS_S = "steps_s"
PART_TEXTS = {
    QUEUE_S: "queued",
    "startup_s": "start-up",
    "compile_s": "compilation",
    "warmup_s": "slow first steps",
    STEPS_S: "steps",
}
_LEAST_SHOWN_S = 0.5
_MOST_S = 120  # seconds that are shown without minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work of a whole job.

    Args:
        unit: one of ``JOB_UNITS``.
        amount: number of units, > 0.
    """

    unit: str
    amount: float

    @property
    def rate(self) -> str:
        """Name of the throughput that the time of the steps follows from."""
        return f"{self.unit}_per_second"

    def __str__(self) -> str:
        return f"{self.amount:,.0f} {self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedJob:
    """Job as one config would run it.

    Args:
        job: its work.
        overheads: seconds of ``OVERHEADS``; an unknown part is missing, and counts as nothing.
    """

    job: Job
    overheads: Mapping[str, float]

    @property
    def overhead_s(self) -> float:
        """Seconds besides the steps at their steady pace."""
        return sum(self.overheads.values())

    def parts(self, rate: float | None) -> dict[str, float]:
        """Return the seconds of the overheads and of the steps, at a throughput of the job's unit, if it is known."""
        return {**self.overheads, **({} if rate is None else {STEPS_S: self.job.amount / rate})}

    def pace(self, rate: float | None) -> float | None:
        """Return one over the seconds until the job is done, at a throughput of its unit; ``None`` without one."""
        return None if rate is None else 1.0 / (self.overhead_s + self.job.amount / rate)

    def share_of_steps(self, rate: float | None) -> float:
        """Return the share of the time that the steps at their steady pace take, 0 to 1; 1 where it is unknown."""
        pace = self.pace(rate)
        return 1.0 if pace is None else max(0.0, 1.0 - self.overhead_s * pace)


def parts_text(parts: Mapping[str, float], job: Job) -> str:
    """Return the parts of the time until a job is done, in words.

    Args:
        parts: seconds of ``OVERHEADS`` and ``STEPS_S``; an unknown part is missing.
        job: its work.

    >>> parts_text({"queue_s": 40.0, "startup_s": 12.0, "compile_s": 95.0, "warmup_s": 0.1, "steps_s": 210.0},
    ...            Job(unit="steps", amount=1000))
    'queued 40 s, start-up 12 s, compilation 95 s, then 1,000 steps in 3 min 30 s'
    >>> parts_text({"startup_s": 12.0, "compile_s": 0.0, "warmup_s": 0.0, "steps_s": 21.0}, Job(unit="steps", amount=9))
    'queue unknown, start-up 12 s, then 9 steps in 21 s'
    """
    without_steps = {name: seconds for name, seconds in parts.items() if name != STEPS_S}
    unknown = [text for name, text in ((QUEUE_S, "queue"), ("startup_s", "start-up")) if name not in parts]
    steps = f"then {job} in {seconds_text(parts[STEPS_S])}" if STEPS_S in parts else ""
    return ", ".join([*(f"{text} unknown" for text in unknown), *filter(None, [overheads_text(without_steps), steps])])


def overheads_text(parts: Mapping[str, object]) -> str:
    """Return the overheads of half a second or more, in words; without impossible ones.

    >>> overheads_text({"queue_s": 40.0, "startup_s": 12.0, "compile_s": 0.0, "warmup_s": 1e300})
    'queued 40 s, start-up 12 s'
    """
    numbers = {name: value for name, value in parts.items() if isinstance(value, int | float)}
    known = {name: value for name, value in numbers.items() if _LEAST_SHOWN_S <= value <= MOST_OVERHEAD_S}
    return ", ".join(f"{text} {seconds_text(known[name])}" for name, text in PART_TEXTS.items() if name in known)


def seconds_text(seconds: float) -> str:
    """Return a duration with two units at most.

    >>> [seconds_text(each) for each in (0.25, 7.25, 42.4, 210, 3 * 3600 + 120, 7 * 86_400.0)]
    ['0.25 s', '7.2 s', '42 s', '3 min 30 s', '3 h 2 min', '7 d 0 h']
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for (name, size), (lower_name, lower) in pairwise((("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))):
        if whole >= size and whole > _MOST_S:
            return f"{whole // size} {name} {whole % size // lower} {lower_name}"
    return f"{whole} s"
