"""Outcome of a launch in words, for the last line of its log: the recorded throughput, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import interval_text, measured_rate_text
from torchx_cubicml.records.crowding import crowded_share
from torchx_cubicml.records.event import trials_of
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial


def outcome_text(end: Event) -> str:
    """Return the throughput and the end that a launch's end event records; its error includes other load on the host.

    >>> from torchx_cubicml.records.event import Event, EventKind
    >>> from torchx_cubicml.records.measurement import Measurement
    >>> measured = Measurement(samples_per_second=12_341.0, relative_error=0.0125, steps_counted=30)
    >>> end = Event(kind=EventKind.ENDED, trial_id="t-1", state=State.COMPLETED, measurement=measured)
    >>> outcome_text(end)
    'recorded 12,340 samples/s (± 2 %, 30 steps)'
    """
    (trial,) = trials_of([end])
    rate = measured_rate_text(trial.measurement) if trial.measurement is not None else ""
    ended_as = "" if trial.state is State.COMPLETED else str(trial.state).replace("_", " ")
    if rate:
        until = f" until it ended: {ended_as}" if ended_as else ""
        return f"recorded {rate} ({_sureness(trial)}){until}"
    if ended_as:
        return f"recorded without a throughput, ended: {ended_as}"
    return f"recorded without a throughput{': no steady steps were seen' if trial.measurement is None else ''}"


def _sureness(trial: Trial) -> str:
    """Return the 90 % interval of a measured throughput, the steps behind it, and what makes it less sure."""
    measured = trial.measurement
    if measured is None:
        return ""
    steps = f"{measured.steps_counted} step{'s' if measured.steps_counted > 1 else ''}"
    unknown = "error unknown" if measured.relative_error is None else "± 0.5 % or less"
    doubts = (
        "crowded" if crowded_share(trial) > 0 else "",
        "not steady" if measured.is_steady is False else "",
        "from log lines" if measured.source else "",
    )
    told = f"{interval_text(measured.uncertainty) or unknown}, {steps}"
    return "; ".join(filter(None, (told, ", ".join(filter(None, doubts)))))
