"""Budget of a tune: a limit on launches, device hours, or hours."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from torchx_cubicml.errors import LaunchError

_BUDGET = re.compile(r"\s*(\d{1,7}(?:\.\d{1,4})?)\s*(launch(?:es)?|(?:gpu|device)-?hours?|hours?|h)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Resources spent by a tune, launches in flight included.

    Args:
        launches: launches made.
        device_hours: run time in hours times world size, without queueing; a launch in flight counts as expected.
        used_device_hours: the same, but a launch in flight counts for the time that it has run.
        hours: hours during which a tuner process was alive.
        launch_hours: expected run time of one launch in hours; 0 if unknown.
        launch_device_hours: the same, times world size.
    """

    launches: int = 0
    device_hours: float = 0.0
    used_device_hours: float = 0.0
    hours: float = 0.0
    launch_hours: float = 0.0
    launch_device_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limit on exactly one resource. Launches in flight are cancelled when a budget of hours is spent.

    Args:
        launches: most launches, confirmations included.
        device_hours: most hours of run time times world size.
        hours: most hours.
    """

    launches: int | None = None
    device_hours: float | None = None
    hours: float | None = None

    def __post_init__(self) -> None:
        limits = [value for value in (self.launches, self.device_hours, self.hours) if value is not None]
        if len(limits) != 1 or not limits[0] > 0 or not math.isfinite(limits[0]):
            raise LaunchError(f"give one of launches (>= 1), device_hours (> 0) or hours (> 0); got {self!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a budget as typed by the user.

        Raises:
            LaunchError: the text is not a legal budget.

        >>> Budget.parse("16 launches").launches, Budget.parse("200 gpu-hours").device_hours
        (16, 200.0)
        """
        match = _BUDGET.fullmatch(text)
        amount = float(match[1]) if match else 0.0
        unit = ((match[2] or "launches") if match else "").lower()
        if amount > 0 and unit.startswith("launch") and amount.is_integer():
            return cls(launches=int(amount))
        if amount > 0 and unit.startswith(("gpu", "device")):
            return cls(device_hours=amount)
        if amount > 0 and unit.startswith("h"):
            return cls(hours=amount)
        raise LaunchError(f'invalid --budget {text!r}; use "16 launches", "200 gpu-hours" or "6 hours"')

    def launches_left(self, spent: Spent, *, parallel: int = 1) -> int:
        """Return the number of launches that the budget still allows.

        For a budget of hours, it is estimated from the expected run time; before that is known, it is large.

        Args:
            spent: resources spent so far.
            parallel: number of launches in flight at a time.
        """
        if self.launches is not None:
            return max(0, self.launches - spent.launches)
        if self.device_hours is not None:
            return _launches_within(self.device_hours - spent.device_hours, spent.launch_device_hours)
        return parallel * _launches_within((self.hours or 0.0) - spent.hours, spent.launch_hours)

    def is_exhausted(self, spent: Spent) -> bool:
        """Return whether launches in flight must be cancelled because the budget of hours is spent."""
        if self.device_hours is not None:
            return spent.used_device_hours >= self.device_hours
        return self.hours is not None and spent.hours >= self.hours

    def __str__(self) -> str:
        if self.launches is not None:
            return f"{self.launches} launches"
        return f"{self.device_hours:g} gpu-hours" if self.device_hours is not None else f"{self.hours:g} hours"

    def describe_used(self, spent: Spent) -> str:
        """Describe the used part of the budget in words.

        >>> spent = Spent(launches=5, hours=1)
        >>> Budget(launches=6).describe_used(spent), Budget(hours=2).describe_used(spent)
        ('5 of 6 launches', '5 launches, 1.00 of 2 hours')
        """
        if self.launches is not None:
            return f"{spent.launches} of {self.launches} launch{'es' if self.launches != 1 else ''}"
        launches = f"{spent.launches} launch{'es' if spent.launches != 1 else ''}"
        if self.device_hours is not None:
            return (
                f"{launches}, {min(spent.used_device_hours, self.device_hours):.2f} of {self.device_hours:g} gpu-hours"
            )
        return f"{launches}, {min(spent.hours, self.hours or 0.0):.2f} of {self.hours:g} hours"

    def why_spent(self, spent: Spent) -> str:
        """Return the reason why no launch is left, in words."""
        if self.launches is not None or self.is_exhausted(spent):
            return "the budget is used up"
        return "what is left of the budget is shorter than a launch"

    def describe_remaining(self, spent: Spent) -> str:
        """Describe the remaining budget in words."""
        if self.launches is not None:
            return f"{max(0, self.launches - spent.launches)} of {self.launches} launches left"
        if self.device_hours is not None:
            return f"{max(0.0, self.device_hours - spent.device_hours):.2f} of {self.device_hours:g} gpu-hours left"
        return f"{max(0.0, (self.hours or 0.0) - spent.hours):.2f} of {self.hours:g} hours left"


_MANY = 10_000  # launches, while their run time is unknown


def _launches_within(left: float, each: float) -> int:
    """Return the number of launches of cost ``each`` that fit into ``left``."""
    if left <= 0:
        return 0
    return min(_MANY, int(left / each)) if each > 0 else _MANY
