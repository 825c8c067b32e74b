"""How long a tune waits before it looks at a job again: a scheduler has others to serve."""

from __future__ import annotations

_SHORTEST_S, _LONGEST_S = 0.2, 10.0
_SHARE = 0.03  # of a job's age
_EARLY_SHARE = 0.06  # the same, before any launch was over that ran to its end
_SOON_SHARE = 0.01  # the same, while launches of before came to their ends
_SPREAD = 0.1  # by which the next launch may be shorter or longer than any before


def pause_s(age_s: float, *, eager: bool, usual_s: tuple[float, float] | None) -> float:
    """Return seconds until a job is to be looked at again.

    Args:
        age_s: seconds that it has run, or waited.
        eager: whether looking costs nothing, or the job is about to be over.
        usual_s: how long the shortest and the longest launch ran; ``None`` where none is known, or the job waits.

    >>> [round(pause_s(age, eager=False, usual_s=(100.0, 200.0)), 2) for age in (50.0, 95.0, 150.0, 300.0)]
    [3.0, 0.95, 1.5, 9.0]
    """
    if eager:
        return _SHORTEST_S
    if usual_s is None:
        return _within(_SHARE * age_s)
    shortest_s, longest_s = (1 - _SPREAD) * usual_s[0], (1 + _SPREAD) * usual_s[1]
    if age_s < shortest_s:
        return _within(min(_EARLY_SHARE * age_s, shortest_s - age_s))
    return _within((_SOON_SHARE if age_s < longest_s else _SHARE) * age_s)


def _within(seconds: float) -> float:
    return min(max(_SHORTEST_S, seconds), _LONGEST_S)
