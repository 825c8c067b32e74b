"""Objectives: the units in which a throughput is maximised, and the throughput per second that each is made of."""

from __future__ import annotations

RATES = ("tokens_per_second", "samples_per_second")
"""Units of work that trials record."""
OBJECTIVES = (*RATES, "steps_per_second")
"""Objectives that are a throughput per second of the whole job."""
PER_DEVICE_HOUR = ("tokens_per_device_hour", "samples_per_device_hour")
PER_CURRENCY = ("tokens_per_currency", "samples_per_currency")
PER_JOULE = ("tokens_per_joule", "samples_per_joule")
"""Objectives that divide a throughput by the power measured beside it, which no config tells before it has run."""
PER_COST = (*PER_DEVICE_HOUR, *PER_CURRENCY, *PER_JOULE)
"""Objectives that divide a throughput by what the job costs."""
SOONEST_DONE = "soonest_done"
"""Objective whose value is jobs per second: one over the seconds until the job is done; see ``job_time``."""
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


def in_unit(objective: str, rate: float, *, devices: object, price: object, power: float | None) -> float | None:
    """Return a throughput per second in the unit of one of ``PER_COST``; ``None`` where what the job costs is unknown.

    Args:
        objective: one of ``PER_COST``.
        rate: throughput per second of the whole job, > 0.
        devices: number of devices.
        price: of a device hour.
        power: watts of the whole job; ``None`` where unknown.

    >>> in_unit("tokens_per_device_hour", 10.0, devices=2, price=None, power=None)
    18000.0
    """
    cost = power if objective in PER_JOULE else cost_per_second(objective, devices=devices, price=price)
    return None if cost is None else rate / cost


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
