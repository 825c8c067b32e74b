"""Immutable events of the store's journal, and the fold (event sourcing) of a launch's events into its trial.

Events are ordered by attempt and by the writer's sequence number; their times are for people only.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.arguments import digested_arguments
from torchx_cubicml.records.crowding import as_reported, with_crowding
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.job_time import QUEUE_S
from torchx_cubicml.records.json_fields import object_of, text_of, texts_of, whole_number_of
from torchx_cubicml.records.measurement import MEDIAN, Measurement
from torchx_cubicml.records.provenance import Trust, least_trusted
from torchx_cubicml.records.redaction import MASK, mask, names_secret
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.records.values import MAX_ITEMS, MAX_TEXT, MAX_WHOLE, freeze_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.values import Config, Value, Workload

SCHEMA_VERSION = 1
TUNER = "tune"  # writer of the events of ``tune``
MEASURED_TRAINING = "measured_training"  # fact: which of several trainings of the process the event describes
MAX_REASON = 8192  # stored characters of a reason
_MAX_TEXT = 64 * 1024  # characters; a longer text is refused at reading
_DIGEST = re.compile(r"[0-9a-f]{8}")

# Where ranks report different ends, the most specific cause counts: a rank that raises breaks the connections of its
# peers, so that their ends look like infrastructure failures.
_SPECIFIC_FIRST = (
    State.OUT_OF_MEMORY,
    State.USER_ERROR,
    State.TIMEOUT,
    State.INFRASTRUCTURE,
    State.STOPPED_EARLY,
    State.UNKNOWN,
    State.COMPLETED,
)


class EventKind(StrEnum):
    """Kind of an event: the stage of the launch that it records."""

    PLANNED = "planned"
    STARTED = "started"
    MEASURED = "measured"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Immutable event of a launch, stored as one object.

    Args:
        kind: kind of the event.
        trial_id: trial of the event; empty on ``planned``, which is joined by its launch id.
        launch_id: id from the contract; empty where no ``planned`` event was written.
        attempt: scheduler restart count, torchelastic restart count.
        sequence: the writer's count of events within the attempt, from 0.
        writer: writer of the event, such as ``rank0`` or ``tune``.
        time: ISO 8601 in UTC; for people, never for ordering.
        workload: facts that identify the workload.
        config: requested config.
        origin: source of the config.
        observed: facts observed inside the job.
        measurement: throughput so far.
        state: end state, on ``ended`` only.
        reason: cause of the end with secrets masked, on ``ended`` only.
        suggestion: prediction made for the config.
        arguments: of the program, on ``started`` only, written as ``digested_arguments``; ``None`` where unknown.
        digests: of the other texts of the command, on ``started`` only: see ``Trial``.
        provenance: on ``started`` only: see ``Trial``.
        command: the command that ran, on ``started`` only: see ``Trial``.
        trust: trust level of the store that the event came from.
        extra: fields of a later schema, kept as read.
    """

    kind: EventKind
    trial_id: str = ""
    launch_id: str = ""
    attempt: tuple[int, int] = (0, 0)
    sequence: int = 0
    writer: str = ""
    time: str = ""
    workload: Workload = field(default_factory=dict)
    config: Config = field(default_factory=dict)
    origin: Origin = Origin.USER
    observed: Mapping[str, Value] = field(default_factory=dict)
    measurement: Measurement | None = None
    state: State | None = None
    reason: str = ""
    suggestion: Mapping[str, object] | None = None
    arguments: tuple[str, ...] | None = None
    digests: Mapping[str, str] | None = None
    provenance: Mapping[str, Value] = field(default_factory=dict)
    command: Mapping[str, Value] = field(default_factory=dict)
    trust: Trust = Trust.OWN
    extra: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.trial_id or self.launch_id):
            raise RecordError(f"a {self.kind} event needs a trial_id or a launch_id")
        if (self.kind is EventKind.ENDED) != (self.state is not None):
            raise RecordError(f"ended events need a state and others have none, got {self.state!r} on {self.kind}")
        if self.state is not None and not self.state.ended:
            raise RecordError(f"an ended event needs a final state, got {self.state}")

    def to_json(self) -> dict[str, object]:
        """Return the event as a JSON object, without empty fields and with secrets masked."""
        payload = {
            "schema": SCHEMA_VERSION,
            "event": str(self.kind),
            "trial_id": self.trial_id,
            "launch_id": self.launch_id,
            "attempt": list(self.attempt),
            "sequence": self.sequence,
            "writer": self.writer,
            "time": self.time,
            "workload": _masked(self.workload),
            "config": _masked(self.config),
            "origin": str(self.origin),
            "observed": _masked(self.observed),
            "measurement": _measurement_json(self.measurement) if self.measurement else None,
            "state": None if self.state is None else str(self.state),
            "reason": mask(self.reason[:_MAX_TEXT])[:MAX_REASON],
            "suggestion": _masked(self.suggestion) if self.suggestion else None,
            "arguments": None if self.arguments is None else list(digested_arguments(self.arguments)),
            "digests": None if self.digests is None else dict(self.digests),
            "provenance": _masked(self.provenance),
            "command": _masked(self.command),
            "trust": "" if self.trust is Trust.OWN else str(self.trust),
        }
        return {**self.extra, **_without_empty(payload)}

    @classmethod
    def from_json(cls, payload: object) -> Self:
        """Return the event of a JSON object; unknown fields are kept in ``extra``.

        Raises:
            RecordError: a field is missing or not legal, or the schema is newer than this package supports.
        """
        if not isinstance(payload, dict):
            raise RecordError(f"an event must be a JSON object, got {type(payload).__name__}")
        try:
            _check_schema(payload.get("schema"))
            return cls(
                kind=EventKind(payload.get("event", "")),
                attempt=_attempt(payload.get("attempt", [0, 0])),
                sequence=whole_number_of(payload.get("sequence", 0), "sequence", most=MAX_WHOLE),
                origin=Origin(payload.get("origin", Origin.USER)),
                state=None if payload.get("state") is None else State(payload["state"]),
                measurement=measurement_from_json(payload.get("measurement")),
                suggestion=_object_or_none(payload.get("suggestion"), "suggestion"),
                arguments=_arguments(payload.get("arguments")),
                digests=None if payload.get("digests") is None else digests_of(payload["digests"]),
                provenance=freeze_values(payload.get("provenance", {}), where="provenance"),
                command=freeze_values(payload.get("command", {}), where="command"),
                trust=Trust(payload.get("trust", Trust.OWN)),
                extra={name: value for name, value in payload.items() if name not in _KNOWN},
                trial_id=text_of(payload.get("trial_id", ""), "trial_id", most=_MAX_TEXT),
                launch_id=text_of(payload.get("launch_id", ""), "launch_id", most=_MAX_TEXT),
                writer=text_of(payload.get("writer", ""), "writer", most=_MAX_TEXT),
                time=text_of(payload.get("time", ""), "time", most=_MAX_TEXT),
                reason=text_of(payload.get("reason", ""), "reason", most=_MAX_TEXT),
                workload=freeze_values(payload.get("workload", {}), where="workload"),
                config=freeze_values(payload.get("config", {}), where="config"),
                observed=freeze_values(payload.get("observed", {}), where="observed"),
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"invalid event: {error}") from error


_KNOWN = {"schema", "event"} | {item.name for item in fields(Event)} - {"kind", "extra"}


def measurement_from_json(value: object) -> Measurement | None:
    """Return the measurement of a JSON object; fields of a later schema are ignored.

    Raises:
        RecordError: a field is not legal.
        TypeError: a field has the wrong type.
    """
    payload = _object_or_none(value, "measurement")
    if payload is None:
        return None
    known = {name: item for name, item in payload.items() if name in Measurement.__dataclass_fields__}
    quantiles = known.get("step_time_s")
    if isinstance(quantiles, list):
        known["step_time_s"] = tuple(quantiles)
    if known.get("step_time_s") or known.get("source"):
        # Releases that did not record the statistic measured the median step.
        known.setdefault("statistic", MEDIAN)
    return Measurement(**known)  # type: ignore[arg-type]  # Measurement checks its fields


def _measurement_json(measurement: Measurement) -> dict[str, object]:
    # The statistic is written even if unknown: a record without the field is from a release that did not record it.
    return {**_masked(_without_empty(asdict(measurement))), "statistic": measurement.statistic}


def fold_events(events: Iterable[Event]) -> list[Trial]:
    """Fold events in any order into one trial per launch, in the order in which trial ids first appear."""
    events = list(events)
    trials_of_launch: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for event in events:
        if event.launch_id and event.trial_id:
            trials_of_launch[event.launch_id][event.trial_id] = None
    groups: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        for trial_id in (
            (event.trial_id,) if event.trial_id else trials_of_launch[event.launch_id] or (event.launch_id,)
        ):
            groups[trial_id].append(event)
    return [_fold_trial(trial_id, group) for trial_id, group in groups.items()]


def trials_of(events: Iterable[Event]) -> list[Trial]:
    """Return the trials of all events of a store, as each of its readers gives them; see ``with_crowding``."""
    return with_crowding(fold_events(events))


def trial_events(trial: Trial, *, writer: str = "") -> list[Event]:
    """Return the fewest events that fold back into ``trial``, in the order of their sequence.

    Args:
        trial: record of a launch that was not recorded event by event.
        writer: writer of the events.
    """
    trial = as_reported(trial)
    base = Event(
        kind=EventKind.STARTED,
        trial_id=trial.trial_id,
        launch_id=trial.launch_id,
        writer=writer,
        origin=trial.origin,
        trust=trial.trust,
    )
    begin = replace(
        base,
        kind=EventKind.PLANNED if trial.state is State.PLANNED else EventKind.STARTED,
        time=trial.started_at,
        workload=freeze_values(trial.workload, where="workload"),
        config=freeze_values(trial.config, where="config"),
        observed=freeze_values(trial.observed, where="observed"),
        arguments=trial.arguments,
        digests=trial.digests,
        provenance=freeze_values(trial.provenance, where="provenance"),
        command=freeze_values(trial.command, where="command"),
        suggestion=trial.suggestion,
        measurement=None if trial.state.ended else trial.measurement,
    )
    restarts = [replace(base, attempt=(0, attempt)) for attempt in range(1, trial.attempts)]
    if not trial.state.ended:
        return [begin, *restarts]
    end = replace(
        base,
        kind=EventKind.ENDED,
        attempt=(0, trial.attempts - 1),
        sequence=1,
        time=trial.ended_at,
        measurement=trial.measurement,
        state=trial.state,
        reason=trial.reason,
    )
    return [begin, *restarts, end]


def _fold_trial(trial_id: str, events: Sequence[Event]) -> Trial:
    ordered = sorted(events, key=_sort_key)
    of_attempts = [event for event in ordered if event.kind is not EventKind.PLANNED]
    attempts = sorted({event.attempt for event in of_attempts})
    last = [event for event in of_attempts if event.attempt == attempts[-1]]
    end = _deciding_end(of_attempts, last)
    described = _of_measured_training(ordered)
    with_origin = (event for event in ordered if event.kind in {EventKind.PLANNED, EventKind.STARTED})
    return Trial(
        trial_id=trial_id,
        workload=_merged(ordered, "workload"),
        config=_merged(ordered, "config"),
        state=_state(last, end),
        observed=_with_queue(_merged(described, "observed"), ordered),
        measurement=next((event.measurement for event in reversed(described) if event.measurement), None),
        origin=next(with_origin, ordered[0]).origin,
        launch_id=next((event.launch_id for event in ordered if event.launch_id), ""),
        attempts=max(len(attempts), 1),
        reason=end.reason if end else "",
        suggestion=next((event.suggestion for event in ordered if event.suggestion), None),
        arguments=next((event.arguments for event in ordered if event.arguments is not None), None),
        digests=next((event.digests for event in ordered if event.digests is not None), None),
        provenance=next((event.provenance for event in ordered if event.provenance), {}),
        command=next((event.command for event in ordered if event.command), {}),
        trust=least_trusted(event.trust for event in ordered),
        started_at=min(
            (event.time for event in ordered if event.time and event.kind is not EventKind.ENDED), default=""
        ),
        ended_at=max((event.time for event in last if event.kind is EventKind.ENDED), default=""),
    )


def _sort_key(event: Event) -> tuple[bool, tuple[int, int], int, str, str, str]:
    """Return the sort key of an event: plans first, ties by content, so that the order of a listing never counts."""
    planned = event.kind is EventKind.PLANNED
    return not planned, event.attempt, event.sequence, event.writer, event.kind, event.time


def _state(last: Sequence[Event], end: Event | None) -> State:
    if end is not None and end.state is not None:
        return end.state
    return State.RUNNING if last else State.PLANNED


def _deciding_end(events: Sequence[Event], last: Sequence[Event]) -> Event | None:
    # ``tune`` knows the cause where it cancelled the job or queried the scheduler; the ranks see only its consequence.
    tuner_ends = [event for event in events if event.writer == TUNER and event.state not in {None, State.UNKNOWN}]
    if tuner_ends:
        return tuner_ends[-1]
    ends = [event for event in last if event.state is not None]
    # A program may start ranks again once it has caught the failure of earlier ones; each group begins with a start.
    begun = max((event.sequence for event in last if event.kind is EventKind.STARTED), default=0)
    if ends and ends[-1].state is State.COMPLETED:
        ends = [event for event in ends if event.sequence >= begun] or ends
    by_specificity = [event for state in _SPECIFIC_FIRST for event in ends if event.state is state]
    return by_specificity[0] if by_specificity else None


def _of_measured_training(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events without those of a training that the last event no longer measures."""
    numbered = [event for event in events if MEASURED_TRAINING in event.observed]
    if not numbered:
        return events
    last = numbered[-1]
    number = last.observed[MEASURED_TRAINING]
    begins = {EventKind.PLANNED, EventKind.STARTED}
    return [
        event
        for event in events
        if event.kind in begins or event.writer != last.writer or event.observed.get(MEASURED_TRAINING, 1) == number
    ]


def _with_queue(observed: dict[str, Value], events: Sequence[Event]) -> dict[str, Value]:
    """Return the facts with the seconds from the plan of a tune to the start of its program, where both are known."""
    planned = next((each.time for each in events if each.kind is EventKind.PLANNED and each.writer == TUNER), "")
    if not planned:
        return observed
    starts = [each for each in events if each.kind is EventKind.STARTED]
    started = min((each.time for each in starts if each.attempt == (0, 0)), default="")
    begin, end = parse_time(planned), parse_time(started)
    if begin is None or end is None or begin > end:
        return observed
    return {QUEUE_S: (end - begin).total_seconds(), **observed}


def _merged(events: Sequence[Event], name: str) -> dict[str, Value]:
    merged: dict[str, Value] = {}
    for event in events:
        merged.update(getattr(event, name))
    return merged


def _masked(values: Mapping[str, object]) -> dict[str, object]:
    return {
        mask(name): MASK if names_secret(name) and not isinstance(value, bool) else _masked_value(value)
        for name, value in values.items()
    }


def _masked_value(value: object) -> object:
    if isinstance(value, Mapping):
        return _masked(value)
    if isinstance(value, list | tuple):
        return [_masked_value(item) for item in value]
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    return value


def _check_schema(schema: object) -> None:
    if isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= SCHEMA_VERSION:
        raise RecordError(f"unknown schema {schema!r:.60}; this version reads 1 to {SCHEMA_VERSION}")


def _without_empty(payload: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in payload.items() if value is not None and value not in ("", {}, ())}


def _attempt(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise RecordError(f"attempt must be two whole numbers, got {value!r:.60}")
    first, second = (whole_number_of(each, "attempt", most=MAX_WHOLE) for each in value)
    return first, second


def _arguments(value: object) -> tuple[str, ...] | None:
    return None if value is None else texts_of(value, "arguments", most=MAX_ITEMS, most_characters=MAX_TEXT)


def digests_of(value: object) -> dict[str, str]:
    """Return recorded digests by name.

    Raises:
        RecordError: they are no object of digests.
    """
    digests = object_of(value, "digests")
    if len(digests) > MAX_ITEMS or not all(
        len(name) <= _MAX_TEXT and isinstance(digest, str) and _DIGEST.fullmatch(digest)
        for name, digest in digests.items()
    ):
        raise RecordError(f"digests must be at most {MAX_ITEMS} names with eight hexadecimal digits each")
    return {name: str(digest) for name, digest in digests.items()}


def _object_or_none(value: object, name: str) -> dict[str, object] | None:
    return None if value is None else object_of(value, name)
