"""Compact JSON table of trials for the cache: a mapping shared by many trials is written once.

Reading checks each value as an event of a store is checked: a table is trusted no more than the store behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import digests_of
from torchx_cubicml.records.json_fields import items_of, texts_of
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.records.values import MAX_NAMES, freeze_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torchx_cubicml.records.values import Value

_MAPPINGS = ("workload", "config", "observed")
_ARGUMENTS = "arguments"
_MEASURED = tuple(Measurement.__dataclass_fields__)
_STATES, _ORIGINS = {str(state): state for state in State}, {str(origin): origin for origin in Origin}
_TRUSTS = {str(trust): trust for trust in Trust}
_TEXTS = ("trial_id", "launch_id", "reason", "started_at", "ended_at")


def to_table(trials: Iterable[Trial]) -> dict[str, list[object]]:
    """Encode trials as JSON values that ``from_table`` decodes."""
    pairs: dict[tuple[str, str], int] = {}
    values: list[object] = []
    mappings: dict[tuple[int, ...], int] = {}
    known: dict[int, tuple[Mapping[str, Value], int]] = {}  # keeps each mapping alive, as its id is the key

    def number_of(mapping: Mapping[str, Value]) -> int:
        if id(mapping) in known:
            return known[id(mapping)][1]
        numbers = []
        for item in mapping.items():
            number = pairs.setdefault((item[0], repr(item[1])), len(pairs))
            if number == len(values):
                values.append(item)
            numbers.append(number)
        number = mappings.setdefault(tuple(numbers), len(mappings))
        known[id(mapping)] = mapping, number
        return number

    rows = [_row(trial, number_of) for trial in trials]
    return {"pairs": values, "mappings": [*mappings], "trials": [*rows]}


def from_table(table: Mapping[str, object]) -> list[Trial]:
    """Decode the trials of a table; trials with the same mapping share one object.

    Raises:
        RecordError: a value is not legal.
        LookupError: the table is damaged.
        TypeError: likewise.
        ValueError: likewise.
    """
    pairs = [_pair(item) for item in items_of(table["pairs"], "pairs")]
    mappings = [
        _mapping([pairs[number] for number in items_of(numbers, "a mapping")])
        for numbers in items_of(table["mappings"], "mappings")
    ]
    return [_trial(items_of(row, "a trial"), mappings) for row in items_of(table["trials"], "trials")]


def _row(trial: Trial, number_of: Callable[[Mapping[str, Value]], int]) -> list[object]:
    return [
        *(number_of(getattr(trial, name)) for name in _MAPPINGS),
        *(getattr(trial, name) for name in _TEXTS),
        str(trial.state),
        str(trial.origin),
        trial.attempts,
        [getattr(trial.measurement, name) for name in _MEASURED] if trial.measurement is not None else None,
        trial.suggestion,
        number_of({} if trial.arguments is None else {_ARGUMENTS: trial.arguments}),
        number_of(trial.digests or {}),
        number_of(trial.provenance),
        number_of(trial.command),
        str(trial.trust),
    ]


def _trial(row: list[Any], mappings: list[dict[str, Value]]) -> Trial:
    workload, config, observed, trial_id, launch_id, reason, started_at, ended_at, *rest = row
    state, origin, attempts, measurement, suggestion, arguments, digests, provenance, command, trust = rest
    known = mappings[arguments].get(_ARGUMENTS)
    texts = trial_id, launch_id, reason, started_at, ended_at
    if not all(type(text) is str for text in texts) or not isinstance(suggestion, dict | None):
        raise RecordError("a trial of the table is damaged")
    return Trial(
        workload=mappings[workload],
        config=mappings[config],
        observed=mappings[observed],
        provenance=mappings[provenance],
        command=mappings[command],
        trial_id=str(trial_id),
        launch_id=str(launch_id),
        reason=str(reason),
        started_at=str(started_at),
        ended_at=str(ended_at),
        state=_STATES[state],
        origin=_ORIGINS[origin],
        trust=_TRUSTS[trust],
        attempts=attempts,
        measurement=_measurement(measurement),
        suggestion=suggestion,
        arguments=texts_of(list(known), _ARGUMENTS) if isinstance(known, tuple) else None,
        digests=digests_of(mappings[digests]) if mappings[digests] else None,
    )


def _measurement(values: object) -> Measurement | None:
    if values is None:
        return None
    named = dict(zip(_MEASURED, items_of(values, "a measurement"), strict=True))
    named["step_time_s"] = tuple(items_of(named["step_time_s"], "step_time_s"))
    return Measurement(**named)


def _pair(item: object) -> tuple[str, Value]:
    name, value = items_of(item, "a fact")
    ((known, frozen),) = freeze_values({name: value}, where="facts").items()
    return known, frozen


def _mapping(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    if len(pairs) > MAX_NAMES:
        raise RecordError(f"a trial of the table has {len(pairs)} names; the limit is {MAX_NAMES}")
    return dict(pairs)
