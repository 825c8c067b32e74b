"""Poll interval of a job, chosen so that a tune does not burden a shared scheduler."""

from __future__ import annotations

_SHORTEST_S, _LONGEST_S = 0.2, 10.0
_SHARE = 0.03  # of a job's age
_EARLY_SHARE = 0.06  # the same, at an age before the shortest earlier run time
_SOON_SHARE = 0.01  # the same, at an age between the shortest and the longest earlier run time
_SPREAD = 0.1  # by which a run time may lie outside the range of earlier ones


def poll_interval_s(age_s: float, *, eager: bool, usual_s: tuple[float, float] | None) -> float:
    """Return the poll interval of a job in seconds.

    Args:
        age_s: seconds that the job has run, or waited.
        eager: true if a poll costs nothing, or the job is about to end.
        usual_s: shortest and longest run time of earlier launches in seconds; ``None`` if unknown, or the job waits.

    >>> [round(poll_interval_s(age, eager=False, usual_s=(100.0, 200.0)), 2) for age in (50.0, 95.0, 150.0, 300.0)]
    [3.0, 0.95, 1.5, 9.0]
    """
    if eager:
        return _SHORTEST_S
    if usual_s is None:
        return _clamped(_SHARE * age_s)
    shortest_s, longest_s = (1 - _SPREAD) * usual_s[0], (1 + _SPREAD) * usual_s[1]
    if age_s < shortest_s:
        return _clamped(min(_EARLY_SHARE * age_s, shortest_s - age_s))
    return _clamped((_SOON_SHARE if age_s < longest_s else _SHARE) * age_s)


def _clamped(seconds: float) -> float:
    return min(max(_SHORTEST_S, seconds), _LONGEST_S)
