"""Objectives per cost: throughput over the device hours, or the money, that a job costs in the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


PER_DEVICE_HOUR = ("tokens_per_device_hour", "samples_per_device_hour")
PER_CURRENCY = ("tokens_per_currency", "samples_per_currency")
PER_JOULE = ("tokens_per_joule", "samples_per_joule")
"""Objectives that divide a throughput by the power measured beside it, which no config tells before it has run."""
PER_COST = (*PER_DEVICE_HOUR, *PER_CURRENCY, *PER_JOULE)
"""Objectives that divide a throughput by what the job costs."""
PRICE = "price_per_device_hour"
"""Fact of a trial, where the space file has a table of prices."""
_SECONDS_PER_HOUR = 3600.0


def rate_of(objective: str) -> str:
    """Return the measured quantity that an objective is made of: what is learned, where the rest is known.

    It is a throughput per second. An objective per joule is measured as a whole.

    >>> rate_of("tokens_per_device_hour"), rate_of("samples_per_second"), rate_of("tokens_per_joule")
    ('tokens_per_second', 'samples_per_second', 'tokens_per_joule')
    """
    return objective if objective in PER_JOULE else counted_rate(objective)


def counted_rate(objective: str) -> str:
    """Return the throughput per second that an objective divides; the objective itself where it divides none.

    >>> counted_rate("tokens_per_joule"), counted_rate("steps_per_second")
    ('tokens_per_second', 'steps_per_second')
    """
    return f"{objective.partition('_per_')[0]}_per_second" if objective in PER_COST else objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a device hour, by the value of one parameter or fact.

    Args:
        name: of the parameter or fact, such as ``partition``.
        of_value: text of its value -> price > 0, in any currency.
    """

    name: str
    of_value: Mapping[str, float]

    def price(self, value: object) -> float | None:
        """Return the price for a value; ``None`` where there is none.

        >>> Prices(name="partition", of_value={"fast": 3.2}).price("fast")
        3.2
        """
        return self.of_value.get(text_of_value(value)) if value is not None else None


def text_of_value(value: object) -> str:
    """Return the key of a value in a table of prices.

    >>> text_of_value("fast"), text_of_value(True), text_of_value(2)
    ('fast', 'true', '2')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def cost_per_second(objective: str, *, devices: object, price: object) -> float | None:
    """Return the cost of a job in a second, in the unit that the objective divides by; ``None`` where unknown.

    A throughput per second is divided by nothing: its cost is 1.

    >>> cost_per_second("tokens_per_device_hour", devices=2, price=None) == 2 / 3600
    True
    """
    if objective not in PER_COST:
        return 1.0
    if objective in PER_JOULE:
        return None
    of_hour = price if objective in PER_CURRENCY else 1.0
    if not isinstance(devices, int) or not isinstance(of_hour, int | float) or devices < 1 or of_hour <= 0:
        return None
    return devices * of_hour / _SECONDS_PER_HOUR
