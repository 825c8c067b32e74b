"""Mixtures of two objectives: their weighted geometric mean, one number by which a search of their frontier goes.

Maximising it for several weights finds several trade-offs between the two (random scalarisation, as in ParEGO: Knowles
2006, doi 10.1109/TEVC.2005.851274; here the sum of the logarithms, as a throughput and its cost are ratios).
"""

from __future__ import annotations

_TIMES = " * "
_POWER = "^"


def mixed(first: str, second: str, weight: float) -> str:
    """Return the name of the mixture of two objectives.

    Args:
        first: objective with the share ``1 - weight``.
        second: objective with the share ``weight``.
        weight: 0 to 1.

    >>> mixed("tokens_per_second", "tokens_per_device_hour", 0.25)
    'tokens_per_second^0.75 * tokens_per_device_hour^0.25'
    >>> mixed("tokens_per_second", "tokens_per_device_hour", 0.0)
    'tokens_per_second'
    """
    parts = [(name, share) for name, share in ((first, 1.0 - weight), (second, weight)) if share > 0.0]
    if len(parts) == 1:
        return parts[0][0]
    return _TIMES.join(f"{name}{_POWER}{share:.6g}" for name, share in parts)


def parts_of(objective: str) -> tuple[tuple[str, float], ...]:
    """Return the objectives of a mixture with their shares, whose sum is 1; one that is no mixture has itself alone.

    >>> parts_of("tokens_per_second^0.75 * tokens_per_device_hour^0.25")
    (('tokens_per_second', 0.75), ('tokens_per_device_hour', 0.25))
    >>> parts_of("tokens_per_second")
    (('tokens_per_second', 1.0),)
    """
    if _TIMES not in objective:
        return ((objective, 1.0),)
    pairs = (part.split(_POWER) for part in objective.split(_TIMES))
    return tuple((name, float(share)) for name, share in pairs)
