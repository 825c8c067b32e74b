"""Crowded measurements: load beside a launch, and launches that overlapped on its host, widen its uncertainty.

A launch that others took a share of its host from is slower than it would be alone, by that share at most. So the
standard deviation of the logarithm of its throughput grows by -log(1 - share).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import product, starmap
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.records.iso_time import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial

CROWDING_FACTS = ("host_cpus", "other_busy_cpus", "idle_cpus", "other_device_processes", "other_device_share")
"""Observed facts that tell what else ran on the host."""

_LEAST_SHARE = 0.1  # of the host; less is the usual background
_IDLE_SHARE, _IDLE_PROCESSORS = 0.1, 2.0  # if this much of the host was idle, nobody waited for a processor
_LEAST_ERROR = 1e-6  # what is less comes from the arithmetic
_MOST_WIDENING = 1.0  # log standard deviation, at which a measurement counts for next to nothing

Span: TypeAlias = tuple[float, float]
"""Start and end in seconds since 1970."""


def with_crowding(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials; each crowded measurement has a larger ``relative_error``, every other trial is unchanged.

    >>> from torchx_cubicml.records.trial import Trial
    >>> quiet = Trial.completed(workload={}, config={}, tokens_per_second=9.0)
    >>> crowded = replace(quiet, observed={"host_cpus": 2, "other_busy_cpus": 1.0, "idle_cpus": 0.0})
    >>> [round(trial.measurement.uncertainty, 2) for trial in with_crowding([quiet, crowded])]
    [0.0, 0.69]
    """
    trials = list(trials)
    beside = mean_launches_beside(trials)
    return [_widened(trial, crowded_share(trial, beside=beside.get(id(trial), 0.0))) for trial in trials]


def as_reported(trial: Trial) -> Trial:
    """Return a trial of ``with_crowding`` with the error that its run reported."""
    measurement = trial.measurement
    if measurement is None or not trial.crowding:
        return trial
    own = math.sqrt(max(measurement.uncertainty**2 - trial.crowding**2, 0.0))
    error = own if own > _LEAST_ERROR else None
    return replace(trial, measurement=replace(measurement, relative_error=error), crowding=None)


def crowded_share(trial: Trial, *, beside: float = 0.0) -> float:
    """Return the share of its host that others took from a launch, 0 to 1; 0 if it was at most the usual background.

    What the host showed decides where it was recorded. Else each launch beside it took an equal share.

    Args:
        trial: of the launch.
        beside: mean number of other recorded launches beside it; see ``mean_launches_beside``.
    """
    return max(_shares(trial, beside))


def crowded_device_share(trial: Trial) -> float:
    """Return the share of the memory in use on its devices that others held, likewise."""
    return _shares(trial, 0.0)[1]


def mean_launches_beside(trials: Sequence[Trial]) -> dict[int, float]:
    """Return ``id`` of a measured trial -> mean number of other measured launches on its host while it was measured.

    Launches that each had other devices are not beside one another. Trials without any are left out.
    """
    on_host: defaultdict[str, list[tuple[Span, Trial]]] = defaultdict(list)
    for trial in trials:
        host = trial.observed.get("host")
        span = _measured_span(trial) if isinstance(host, str) else None
        if span is not None:
            on_host[str(host)].append((span, trial))
    shared_s: defaultdict[int, float] = defaultdict(float)
    for entries in on_host.values():
        entries.sort(key=lambda entry: (entry[0], entry[1].trial_id))
        for index, (span, trial) in enumerate(entries):
            for later_span, later in entries[index + 1 :]:
                if later_span[0] >= span[1]:
                    break
                if not _have_disjoint_devices(trial, later):
                    both_s = min(span[1], later_span[1]) - later_span[0]
                    shared_s[id(trial)] += both_s / (span[1] - span[0])
                    shared_s[id(later)] += both_s / (later_span[1] - later_span[0])
    return dict(shared_s)


def crowding_text(trial: Trial, *, beside: float = 0.0) -> str:
    """Return in words what ran beside a launch and makes its measurement less certain; empty if nothing did.

    >>> from torchx_cubicml.records.trial import Trial
    >>> facts = {"host_cpus": 2, "other_busy_cpus": 0.97, "idle_cpus": 0.1}
    >>> crowding_text(replace(Trial.completed(workload={}, config={}, tokens_per_second=9.0), observed=facts))
    'crowded: other processes kept 0.97 of 2 processors busy'
    """
    of_processors, of_devices, of_launches = _shares(trial, beside)
    busy, count = _number(trial, "other_busy_cpus") or 0.0, _number(trial, "other_device_processes") or 0.0
    parts = [
        f"{_others(count, 'process')} held {of_devices:.0%} of the memory in use on its devices" if of_devices else "",
        f"other processes kept {_plain(busy)} of {trial.observed.get('host_cpus')} processors busy"
        if of_processors
        else "",
        f"{_others(round(beside, 1), 'recorded launch')} ran beside it" if of_launches else "",
    ]
    text = ", ".join(filter(None, parts))
    return f"crowded: {text}" if text else ""


def _widened(trial: Trial, share: float) -> Trial:
    measurement = trial.measurement
    if measurement is None or not share or trial.crowding:
        return trial
    widening = min(-math.log1p(-share), _MOST_WIDENING) if share < 1.0 else _MOST_WIDENING
    error = math.hypot(measurement.uncertainty, widening)
    return replace(trial, measurement=replace(measurement, relative_error=error), crowding=widening)


def _shares(trial: Trial, beside: float) -> tuple[float, float, float]:
    """Return the shares that other processes took of the processors and of the devices, and those of other launches."""
    of_launches = _above_background(beside / (1.0 + beside))
    if _is_on_devices(trial):
        of_devices = _number(trial, "other_device_share")
        rest = of_launches if of_devices is None else 0.0
        on_host = _above_background((_processor_share(trial) or 0.0) * _share_on_host(trial))
        return on_host, _above_background(of_devices or 0.0), rest
    of_processors = _processor_share(trial, overlapped=of_launches > 0)
    return of_processors or 0.0, 0.0, of_launches if of_processors is None else 0.0


def _share_on_host(trial: Trial) -> float:
    """Return the share of its time in which a training on devices waits for processors: outside its steps.

    In its steps it waits for its devices. All of it where the share is unknown.
    """
    outside = trial.measurement.share_outside_steps if trial.measurement is not None else None
    return 1.0 if outside is None else outside


def _above_background(share: float) -> float:
    return min(share, 1.0) if share >= _LEAST_SHARE else 0.0


def _plain(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _others(count: float, name: str) -> str:
    plural = f"{name}es" if count != 1 else name
    return f"{count:g} other {plural}"


def _processor_share(trial: Trial, *, overlapped: bool = False) -> float | None:
    """Return the share of processors that others took; ``None`` if unknown.

    Processors that were idle could have run the job, too: with enough of them, nothing was taken. If another recorded
    launch ran beside it, they do not count: launches share more than processors, such as the bandwidth of memory.
    """
    processors, busy, idle = (_number(trial, name) for name in ("host_cpus", "other_busy_cpus", "idle_cpus"))
    if not processors or busy is None or idle is None:
        return None
    if overlapped:
        return _above_background(busy / processors)
    is_enough = idle >= max(_IDLE_SHARE * processors, _IDLE_PROCESSORS)
    return 0.0 if is_enough else _above_background((busy - idle) / processors)


def _is_on_devices(trial: Trial) -> bool:
    return "devices_per_node" in trial.observed


def _have_disjoint_devices(trial: Trial, other: Trial) -> bool:
    pairs = list(product(_visible_devices(trial), _visible_devices(other)))
    return bool(pairs) and all(starmap(_are_different, pairs))


def _visible_devices(trial: Trial) -> list[str]:
    """Return the devices of a training on devices, as numbers or UUIDs; empty if unknown."""
    names = trial.observed.get("visible_devices")
    return [name.strip() for name in names.split(",")] if _is_on_devices(trial) and isinstance(names, str) else []


def _are_different(device: str, other: str) -> bool:
    """Return whether two names are of two devices; a number and a UUID, which may be shortened, may name one device.

    >>> _are_different("0", "1"), _are_different("0", "GPU-8a3f"), _are_different("GPU-8a3f", "GPU-8a")
    (True, False, False)
    """
    if device.isdecimal() and other.isdecimal():
        return int(device) != int(other)
    are_alike = device[:4] == other[:4] and device[:4] in {"GPU-", "MIG-"}
    return are_alike and not device.startswith(other) and not other.startswith(device)


def _measured_span(trial: Trial) -> Span | None:
    """Return the time of the steps of a trial; ``None`` if unknown.

    A launch of a tune may wait in a queue for hours after its start, so the time is that of its steps before its end.
    """
    measurement, end = trial.measurement, parse_time(trial.ended_at)
    if measurement is None or end is None:
        return None
    if measurement.mean_step_time_s is not None:
        steps = measurement.warmup_steps + measurement.steps_counted
        paused_s = (measurement.evaluation_s or 0.0) + (measurement.checkpoint_s or 0.0)
        seconds = steps * measurement.mean_step_time_s + paused_s
    else:
        start = parse_time(trial.started_at) if not trial.launch_id else None
        seconds = (end - start).total_seconds() if start is not None else 0.0
    first, last = end.timestamp() - seconds, end.timestamp()
    return (first, last) if -math.inf < first < last else None  # a moment too short for the clock is no span


def _number(trial: Trial, name: str) -> float | None:
    values: Mapping[str, object] = trial.observed
    value = values.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and isinstance(value, int | float) and value >= 0 else None
