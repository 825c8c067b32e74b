"""What the store holds: immutable events, and how the events of one launch fold into its trial.

A trial is the fold of its events, ordered by attempt and by the writer's own sequence; clocks are for people only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import RecordError
from torchx_cubicml.masking import MASK, mask, names_secret
from torchx_cubicml.trial import Measurement, Origin, State, Trial, freeze_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.trial import Config, Value, Workload

SCHEMA_VERSION = 1
_KNOWN = (
    "schema event trial_id launch_id attempt sequence writer time workload config origin observed measurement state "
    "reason suggestion"
).split()

# Where ranks tell of one end differently, the more specific cause is believed: a rank that raises breaks its peers'
# connections, so theirs look like infrastructure.
_SPECIFIC_FIRST = (
    State.OUT_OF_MEMORY,
    State.USER_ERROR,
    State.TIMEOUT,
    State.INFRASTRUCTURE,
    State.UNKNOWN,
    State.STOPPED_EARLY,
    State.COMPLETED,
)


class EventKind(StrEnum):
    """What an event tells."""

    PLANNED = "planned"
    STARTED = "started"
    MEASURED = "measured"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One immutable object of the store.

    Args:
        kind: what it tells.
        trial_id: the trial it belongs to; empty on ``planned``, which is joined by its launch id.
        launch_id: of the contract; empty where no ``planned`` event was written.
        attempt: scheduler restart count, torchelastic restart count.
        sequence: the writer's own count within the attempt, from 0.
        writer: who wrote it, such as ``rank0`` or ``tune``.
        time: ISO 8601 in UTC; for people, never for ordering.
        workload: facts that identify the workload.
        config: requested config.
        origin: who chose the config.
        observed: facts seen inside the job.
        measurement: throughput up to here.
        state: on ``ended``, how.
        reason: on ``ended``, why, masked.
        suggestion: what was promised for the config.
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
    extra: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.trial_id or self.launch_id):
            raise RecordError(f"a {self.kind} event needs a trial_id or a launch_id")
        if (self.kind is EventKind.ENDED) != (self.state is not None):
            raise RecordError(f"state belongs to an ended event and to no other; got {self.state!r} on {self.kind}")

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of this event; empty fields are left out and secrets masked."""
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
            "measurement": _without_empty(asdict(self.measurement)) if self.measurement else None,
            "state": None if self.state is None else str(self.state),
            "reason": mask(self.reason),
            "suggestion": dict(self.suggestion) if self.suggestion else None,
        }
        return {**self.extra, **_without_empty(payload)}

    @classmethod
    def from_json(cls, payload: object) -> Self:
        """Return the event that a JSON object holds; unknown fields are kept in ``extra``.

        Raises:
            RecordError: a field is missing or not legal, or the schema is newer than this package reads.
        """
        if not isinstance(payload, dict):
            raise RecordError(f"an event must be a JSON object, got {type(payload).__name__}")
        schema = payload.get("schema")
        if not isinstance(schema, int) or not 1 <= schema <= SCHEMA_VERSION:
            raise RecordError(f"event schema {schema!r:.60} is unknown; this version reads 1 to {SCHEMA_VERSION}")
        try:
            return cls(
                kind=EventKind(payload.get("event", "")),
                attempt=_attempt(payload.get("attempt", [0, 0])),
                sequence=_whole(payload.get("sequence", 0)),
                origin=Origin(payload.get("origin", Origin.USER)),
                state=None if payload.get("state") is None else State(payload["state"]),
                measurement=_measurement(payload.get("measurement")),
                suggestion=_mapping(payload.get("suggestion")),
                extra={name: value for name, value in payload.items() if name not in _KNOWN},
                **{name: _text(payload, name) for name in ("trial_id", "launch_id", "writer", "time", "reason")},
                **{
                    name: freeze_values(payload.get(name, {}), where=name)
                    for name in ("workload", "config", "observed")
                },
            )
        except (TypeError, ValueError) as error:
            raise RecordError(f"event is not legal: {error}") from error


def fold_events(events: Iterable[Event]) -> list[Trial]:
    """Return one trial per launch, in the order in which their ids first appear; the order of events is free."""
    events = list(events)
    joined = {event.launch_id: event.trial_id for event in events if event.launch_id and event.trial_id}
    groups: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        groups[event.trial_id or joined.get(event.launch_id, event.launch_id)].append(event)
    return [_fold_trial(trial_id, group) for trial_id, group in groups.items()]


def _fold_trial(trial_id: str, events: Sequence[Event]) -> Trial:
    planned_first = sorted(
        events, key=lambda event: (event.kind is not EventKind.PLANNED, event.attempt, event.sequence, event.writer)
    )
    of_attempts = [event for event in planned_first if event.kind is not EventKind.PLANNED]
    attempts = sorted({event.attempt for event in of_attempts})
    last = [event for event in of_attempts if event.attempt == attempts[-1]]
    end = _believed_end(last)
    times = sorted(event.time for event in events if event.time)
    trial = Trial(
        trial_id=trial_id,
        workload=_merged(planned_first, "workload"),
        config=_merged(planned_first, "config"),
        state=_state(last, end),
        observed=_merged(of_attempts, "observed"),
        measurement=next((event.measurement for event in reversed(of_attempts) if event.measurement), None),
        origin=planned_first[0].origin,
        launch_id=next((event.launch_id for event in planned_first if event.launch_id), ""),
        attempts=max(len(attempts), 1),
        suggestion=next((event.suggestion for event in planned_first if event.suggestion), None),
        started_at=times[0] if times else "",
    )
    return trial if end is None else replace(trial, reason=end.reason, ended_at=times[-1] if times else "")


def _state(last: Sequence[Event], end: Event | None) -> State:
    if end is not None and end.state is not None:
        return end.state
    return State.RUNNING if last else State.PLANNED


def _believed_end(last: Sequence[Event]) -> Event | None:
    ends = [event for event in last if event.kind is EventKind.ENDED and event.state in _SPECIFIC_FIRST]
    return min(ends, key=lambda event: _SPECIFIC_FIRST.index(event.state), default=None)  # type: ignore[arg-type]


def _merged(events: Sequence[Event], name: str) -> dict[str, Value]:
    merged: dict[str, Value] = {}
    for event in events:
        merged.update(getattr(event, name))
    return merged


def _masked(values: Mapping[str, Value]) -> dict[str, object]:
    return {name: MASK if names_secret(name) else _masked_value(value) for name, value in values.items()}


def _masked_value(value: Value) -> object:
    if isinstance(value, tuple):
        return [_masked_value(item) for item in value]
    return mask(value) if isinstance(value, str) else value


def _without_empty(payload: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in payload.items() if value is not None and value not in ("", {}, ())}


def _attempt(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise RecordError(f"attempt must be two whole numbers, got {value!r:.60}")
    return _whole(value[0]), _whole(value[1])


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise RecordError(f"a whole number >= 0 is wanted, got {value!r:.60}")


def _text(payload: Mapping[str, object], name: str) -> str:
    value = payload.get(name, "")
    if isinstance(value, str) and len(value) <= 64 * 1024:
        return value
    raise RecordError(f"{name} must be a text of at most 65536 characters, got {value!r:.60}")


def _mapping(value: object) -> dict[str, object] | None:
    if value is None or isinstance(value, dict):
        return value
    raise RecordError(f"a JSON object is wanted, got {value!r:.60}")


def _measurement(value: object) -> Measurement | None:
    payload = _mapping(value)
    if payload is None:
        return None
    known = {name: item for name, item in payload.items() if name in Measurement.__dataclass_fields__}
    quantiles = known.get("step_time_s")
    if isinstance(quantiles, list):
        known["step_time_s"] = tuple(quantiles)
    return Measurement(**known)  # type: ignore[arg-type]
