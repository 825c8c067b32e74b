"""Comparable trials: the same workload, whose fixed facts agree."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torchx_cubicml.records.trial import Trial, Value, Workload


def matches(trial: Trial, workload: Workload) -> bool:
    """Return whether every fact of ``workload`` equals what the trial knows under that name."""
    declared = trial.workload
    for name, value in workload.items():
        known = declared[name] if name in declared else trial.fact(name)
        if known is None or not _alike(known, value):
            return False
    return True


def _alike(known: Value, value: Value) -> bool:
    """Return whether ``value_key`` is the same of both, without it where that can be told sooner."""
    if known is value or known != value:
        return known is value
    return not (_holds_bool(known) or _holds_bool(value)) or value_key(known) == value_key(value)


def _holds_bool(value: Value) -> bool:
    return bool in map(type, value) if isinstance(value, tuple) else isinstance(value, bool)


def value_key(value: Value) -> Hashable:
    """Return what two values share exactly when they are equal and of one kind: ``True`` is not 1, and 4.0 is 4."""
    if isinstance(value, tuple):
        return tuple(map(value_key, value))
    return value if isinstance(value, str) else (isinstance(value, bool), value)


_GROUND = {
    "device": "",
    "n_params": "; declare the flag that changed it under [workload] in the space file",
}
"""Observed fact that trials must have in common -> what to do where they have not."""

_SAME_SIZE = 0.01  # of the parameter count: padding to shards varies with the config
_LEAST_PATIENCE_S = 86_400.0
_PATIENCE = 4.0  # times the longest ended launch
_NAMED = 3  # of the other values


def comparable_trials(trials: Iterable[Trial], workload: Workload) -> tuple[list[Trial], tuple[str, ...]]:
    """Return the trials without those of ``workload`` on other ground, and a line for each reason to leave some out.

    A trial with a throughput that no training can have is left out, too. The ground is what was observed in the latest
    trial of the workload that was measured or ran out of memory; a trial that observed nothing stays, and so do all
    trials of other workloads.

    >>> from torchx_cubicml.records.trial import Trial
    >>> runs = [Trial.completed(workload={}, config={}, tokens_per_second=9.0) for _ in range(2)]
    >>> old, new = (replace(run, observed={"device": name}) for run, name in zip(runs, ("A100", "H100")))
    >>> kept, lines = same_ground([replace(old, ended_at="2026-01-01T00:00:00+00:00"),
    ...                            replace(new, ended_at="2026-02-01T00:00:00+00:00")], {})
    >>> len(kept), lines
    (1, ('1 launch left out: the latest had device H100, not A100',))
    """
    kept, lines = list(trials), []
    own = [trial for trial in kept if matches(trial, workload)]
    impossible = {id(trial): speed for trial in own if (speed := _impossible(trial))}
    if impossible:
        kept, own = ([trial for trial in each if id(trial) not in impossible] for each in (kept, own))
        lines.append(f"{_launches(len(impossible))} left out: no training makes {_or(impossible.values())}")
    for fact, advice in _GROUND.items():
        told = [trial for trial in own if fact in trial.observed]
        latest = max(filter(_teaches, told), key=_recency, default=None)
        if latest is None:
            continue
        ground = latest.observed[fact]
        strange = [trial for trial in told if not _about_equal(trial.observed[fact], ground)]
        if strange:
            left_out = {id(trial) for trial in strange}
            kept = [trial for trial in kept if id(trial) not in left_out]
            own = [trial for trial in own if id(trial) not in left_out]
            lines.append(_line(fact, ground, strange) + advice)
    return kept, tuple(lines)


def under_way(trials: Iterable[Trial], workload: Workload) -> list[Trial]:
    """Return the trials with those of ``workload`` that are planned or running for too long taken for lost.

    A lost running one counts as broken off by the machines, a lost plan as never made. Too long is a day, or four times
    the longest ended launch of the workload where that is more, before the newest event of all: no clock is read.

    >>> from torchx_cubicml.records.trial import Trial
    >>> plan = Trial(trial_id="a", workload={}, config={}, state=State.PLANNED, started_at="2026-01-01T00:00:00+00:00")
    >>> fresh = replace(plan, trial_id="b", started_at="2026-01-03T00:00:00+00:00")
    >>> [trial.trial_id for trial in under_way([plan, fresh], {})]
    ['b']
    """
    trials = list(trials)
    own = [trial for trial in trials if matches(trial, workload)]
    newest = max((_time(text) or 0.0 for trial in trials for text in (trial.started_at, trial.ended_at)), default=0.0)
    patience = max(_LEAST_PATIENCE_S, _PATIENCE * max(map(_duration_s, own), default=0.0))
    waiting = ((trial, _time(trial.started_at)) for trial in own if not trial.state.ended)
    lost = {id(trial) for trial, start in waiting if start is not None and newest - start > patience}
    kept = (trial for trial in trials if id(trial) not in lost or trial.state is State.RUNNING)
    return [replace(trial, state=State.INFRASTRUCTURE) if id(trial) in lost else trial for trial in kept]


def _teaches(trial: Trial) -> bool:
    return trial.state.ended and (trial.measurement is not None or trial.state is State.OUT_OF_MEMORY)


def _recency(trial: Trial) -> tuple[float, str]:
    return _time(trial.ended_at or trial.started_at) or 0.0, trial.trial_id


def _time(text: str) -> float | None:
    """Return seconds since the epoch; ``None`` for no time, or one that a clock without a zone wrote."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant.timestamp() if instant.tzinfo is not None else None


def _duration_s(trial: Trial) -> float:
    start, end = _time(trial.started_at), _time(trial.ended_at)
    return end - start if start is not None and end is not None else 0.0


def _about_equal(value: Value, ground: Value) -> bool:
    if isinstance(value, int | float) and isinstance(ground, int | float):
        return abs(value - ground) <= _SAME_SIZE * abs(ground)
    return value == ground


def _impossible(trial: Trial) -> str:
    return trial.measurement.impossible() if trial.measurement is not None else ""


def _line(fact: str, ground: Value, strange: Sequence[Trial]) -> str:
    others = _or(_short(trial.observed[fact]) for trial in strange)
    return f"{_launches(len(strange))} left out: the latest had {fact} {_short(ground)}, not {others}"


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count > 1 else ''}"


def _or(texts: Iterable[str]) -> str:
    others = sorted(set(texts))
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{' or '.join(others[:_NAMED])}{more}"


def _short(value: Value) -> str:
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else f"{value!s:.60}"
