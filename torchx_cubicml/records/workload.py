"""Comparable trials: trials of the same workload that agree in device and model size."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from torchx_cubicml.facts.hook_registry import VALUES_REFUSED, hook_fact, hook_names
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.memory_failure import as_asked
from torchx_cubicml.records.trial import Origin, State

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value, Workload


def is_same_workload(trial: Trial, workload: Workload) -> bool:
    """Return whether every fact of ``workload`` equals the trial's fact of that name; an unknown project fits."""
    declared = trial.workload
    for name, value in workload.items():
        known = declared[name] if name in declared else trial.fact(name)
        if name == PROJECT:
            if known is not None and not is_same_project(known, value):
                return False
            continue
        if known is None or not _is_same_value(known, value):
            return False
    return True


LOAD_FAILED = "failed_loading"
"""Observed fact: the launch ended while it loaded a checkpoint, which says nothing of its config."""
STATED = "="
"""Mark of an identity of a project that a space file states."""
PROJECT = "project"
"""Workload fact: identities of the project that the program belongs to, where it is known (``project_of``)."""


@lru_cache(maxsize=4096)
def is_same_project(one: Value, other: Value) -> bool:
    """Return whether two programs of the same name belong to one project: an identity fits.

    Two stated names decide alone. An identity without a folder is from an earlier release, or its root is unknown.

    >>> is_same_project(("gpt:src", "host.org/me/gpt:src"), ("host.org/me/gpt:src",)), is_same_project("gpt", "gpt:src")
    (True, True)
    >>> is_same_project("gpt:a", "gpt:b"), is_same_project(("=ads", "gpt:a"), ("=search", "gpt:a"))
    (False, False)
    """
    first, second = (tuple(map(str, each)) if isinstance(each, tuple) else (str(each),) for each in (one, other))
    stated = [[name for name in each if name.startswith(STATED)] for each in (first, second)]
    if all(stated):
        first, second = map(tuple, stated)
    return any(_is_same_identity(*pair) for pair in product(first, second))


def _is_same_identity(one: str, other: str) -> bool:
    (name, _, folder), (other_name, _, other_folder) = (
        each.removeprefix(STATED).partition(":") for each in (one, other)
    )
    if folder and other_folder and folder != other_folder:
        return False
    return name == other_name or any(
        short.startswith("/") and long.endswith(short) for short, long in ((name, other_name), (other_name, name))
    )


def passed_over(trials: Iterable[Trial], workload: Workload) -> str:
    """Return a message if all measured launches of a program of this name belong to other projects; else empty."""
    others = [
        trial for trial in trials if trial.measurement is not None and trial.fact("program") == workload.get("program")
    ]
    if not others or any(is_same_program(trial, workload) for trial in others):
        return ""
    known = max(others, key=recency).workload[PROJECT]
    latest = str(known[0] if isinstance(known, tuple) else known).removeprefix(STATED)
    return (
        f"{count_of_launches(len(others))} of {workload.get('program')} left out: of another project or folder, the "
        f"latest of {latest} (project in the space file names the project)"
    )


def is_same_program(trial: Trial, workload: Workload) -> bool:
    """Return whether a trial ran the program of ``workload``; an unknown project is no other one.

    >>> from torchx_cubicml.records.trial import Trial
    >>> trial = Trial(trial_id="a", workload={"program": "t.py"}, config={}, state=State.RUNNING)
    >>> is_same_program(trial, {"program": "t.py", "project": "gpt"}), is_same_program(trial, {"program": "u.py"})
    (True, False)
    """
    known, project = trial.workload.get(PROJECT), workload.get(PROJECT)
    return trial.fact("program") == workload.get("program") and (
        known is None or project is None or is_same_project(known, project)
    )


def _is_same_value(known: Value, value: Value) -> bool:
    """Return whether two values have the same ``value_key``; the fast path does not compute it."""
    if known is value or known != value:
        return known is value
    return not (_holds_bool(known) or _holds_bool(value)) or value_key(known) == value_key(value)


def _holds_bool(value: Value) -> bool:
    return bool in map(type, value) if isinstance(value, tuple) else isinstance(value, bool)


def value_key(value: Value) -> Hashable:
    """Return a key that two values share if and only if equal and of one kind: ``True`` is not 1, but 4.0 is 4."""
    if isinstance(value, tuple):
        return tuple(map(value_key, value))
    return value if isinstance(value, str) else (isinstance(value, bool), value)


def collapsed(value: Value) -> Value:
    """Return one value for a tuple whose entries are all equal: requesting it per layer requests the same."""
    if isinstance(value, tuple) and value and all(value_key(item) == value_key(value[0]) for item in value):
        return value[0]
    return value


_SHARED_FACTS = {
    "device": "",
    "n_params": "; declare the flag that changed it under [workload] in the space file",
}
"""Observed fact that comparable trials share -> advice where they differ."""

_SIZE_TOLERANCE = 0.01  # relative, of the parameter count: padding to shards varies with the config
_MIN_LIMIT_S = 86_400.0
_LIMIT_FACTOR = 4.0  # multiple of the longest ended launch
_NAMED = 3  # other values that a message names


def comparable_trials(
    trials: Iterable[Trial], workload: Workload, *, any_device: bool = False
) -> tuple[list[Trial], tuple[str, ...]]:
    """Drop the trials of ``workload`` that are not comparable; return the others, and a line for each reason to drop.

    The reference is the latest trial of the workload that was measured or ran out of memory: comparable trials share
    its device and model size. A trial without these facts is kept, and so are all trials of other workloads. A trial
    with an impossible throughput is dropped, too. No measurement keeps one whose values a hook refused, or that ran
    smaller batches than asked (``as_asked``). With ``any_device``, because the config chooses the machine, trials on
    other devices are comparable.

    >>> from torchx_cubicml.records.trial import Trial
    >>> runs = [Trial.completed(workload={}, config={}, tokens_per_second=9.0) for _ in range(2)]
    >>> old, new = (replace(run, observed={"device": name}) for run, name in zip(runs, ("A100", "H100")))
    >>> kept, lines = comparable_trials([replace(old, ended_at="2026-01-01T00:00:00+00:00"),
    ...                                  replace(new, ended_at="2026-02-01T00:00:00+00:00")], {})
    >>> len(kept), lines
    (1, ('1 launch left out: the latest had device H100, not A100',))
    """
    kept, lines = [without_refused_values(trial) for trial in trials], []
    own = [trial for trial in kept if is_same_workload(trial, workload)]
    asked = dict(zip(map(id, own), as_asked(own), strict=True))
    kept, own = [asked.get(id(trial), trial) for trial in kept], [*asked.values()]
    impossible = {id(trial): throughput for trial in own if (throughput := _impossible_throughput(trial))}
    if impossible:
        kept, own = ([trial for trial in each if id(trial) not in impossible] for each in (kept, own))
        lines.append(
            f"{count_of_launches(len(impossible))} left out: impossible throughput, {_or(impossible.values())}"
        )
    shared = {fact: advice for fact, advice in _SHARED_FACTS.items() if not (any_device and fact == "device")}
    for fact, advice in shared.items():
        observing = [trial for trial in own if fact in trial.observed]
        latest = max(filter(_shows_facts, observing), key=recency, default=None)
        if latest is None:
            continue
        reference = latest.observed[fact]
        outliers = [trial for trial in observing if not about_equal(trial.observed[fact], reference)]
        if outliers:
            left_out = {id(trial) for trial in outliers}
            kept = [trial for trial in kept if id(trial) not in left_out]
            own = [trial for trial in own if id(trial) not in left_out]
            lines.append(_message(fact, reference, outliers) + advice)
    return kept, tuple(lines)


def expire_lost_trials(trials: Iterable[Trial], workload: Workload) -> list[Trial]:
    """Expire the lost trials of ``workload`` (those planned or running for too long), and return the trials.

    A lost running trial becomes an infrastructure failure; a lost plan is dropped. The limit is a day, or four times
    the longest ended launch of the workload if that is more. It counts back from the newest event: no clock is read. A
    launch that failed while it loaded a checkpoint is dropped, too, as it says nothing of its config.

    >>> from torchx_cubicml.records.trial import Trial
    >>> plan = Trial(trial_id="a", workload={}, config={}, state=State.PLANNED, started_at="2026-01-01T00:00:00+00:00")
    >>> fresh = replace(plan, trial_id="b", started_at="2026-01-03T00:00:00+00:00")
    >>> [trial.trial_id for trial in expire_lost_trials([plan, fresh], {})]
    ['b']
    """
    trials = list(trials)
    own = [trial for trial in trials if is_same_workload(trial, workload)]
    newest = max((_time(text) or 0.0 for trial in trials for text in (trial.started_at, trial.ended_at)), default=0.0)
    limit_s = max([_MIN_LIMIT_S, *(_LIMIT_FACTOR * _duration_s(trial) for trial in own)])
    waiting = ((trial, _time(trial.started_at)) for trial in own if not trial.state.ended)
    lost = {id(trial) for trial, start in waiting if start is not None and newest - start > limit_s}
    kept = (trial for trial in trials if id(trial) not in lost or trial.state is State.RUNNING)
    kept = (trial for trial in kept if trial.origin is Origin.TUNE or not _failed_loading(trial))
    return [replace(trial, state=State.INFRASTRUCTURE) if id(trial) in lost else trial for trial in kept]


def _failed_loading(trial: Trial) -> bool:
    return LOAD_FAILED in trial.observed and trial.measurement is None and trial.state is not State.OUT_OF_MEMORY


def is_informative(trial: Trial) -> bool:
    """Return whether a trial has ended or was measured."""
    return trial.state.ended or trial.measurement is not None


def _shows_facts(trial: Trial) -> bool:
    return trial.state.ended and (trial.measurement is not None or trial.state is State.OUT_OF_MEMORY)


def recency(trial: Trial) -> tuple[float, str]:
    """Return a key that sorts trials by their time, and trials of the same time by their id."""
    return _time(trial.ended_at or trial.started_at) or 0.0, trial.trial_id


def _time(text: str) -> float | None:
    """Return seconds since the epoch; ``None`` for a text that is no time, or a time without a zone."""
    parsed = parse_time(text)
    return parsed.timestamp() if parsed is not None else None


def _duration_s(trial: Trial) -> float:
    start, end = _time(trial.started_at), _time(trial.ended_at)
    return end - start if start is not None and end is not None else 0.0


def about_equal(value: Value, reference: Value) -> bool:
    """Return whether an observed value equals a reference, numbers within 1 % of it.

    >>> about_equal(1000, 1005), about_equal(1000, 1020), about_equal(True, 1)
    (True, False, False)
    """
    if isinstance(value, bool | str | tuple) or isinstance(reference, bool | str | tuple):
        return value_key(value) == value_key(reference)
    return abs(value - reference) <= _SIZE_TOLERANCE * abs(reference)


def without_refused_values(trial: Trial) -> Trial:
    """Return a trial whose values a hook refused without its measurement, as that is of the program's own values."""
    facts = (trial.observed.get(hook_fact(hook)) for hook in hook_names())
    reason = next((each for each in facts if isinstance(each, str) and each.startswith(VALUES_REFUSED)), "")
    if trial.measurement is None or not reason:
        return trial
    state = State.COMPLETED if trial.state.ended else trial.state
    return replace(trial, measurement=None, state=state, reason=reason)


def _impossible_throughput(trial: Trial) -> str:
    return trial.measurement.impossible() if trial.measurement is not None else ""


def _message(fact: str, reference: Value, outliers: Sequence[Trial]) -> str:
    others = _or(_short(trial.observed[fact]) for trial in outliers)
    return f"{count_of_launches(len(outliers))} left out: the latest had {fact} {_short(reference)}, not {others}"


def count_of_launches(count: int) -> str:
    """Return a count in words: ``1 launch``, ``2 launches``."""
    return f"{count} launch{'es' if count > 1 else ''}"


def _or(texts: Iterable[str]) -> str:
    others = sorted(set(texts))
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{' or '.join(others[:_NAMED])}{more}"


def _short(value: Value) -> str:
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else f"{value!s:.60}"
