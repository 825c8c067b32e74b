from __future__ import annotations

import json
from itertools import permutations

import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import Event, EventKind, fold_events, trial_events
from torchx_cubicml.records.provenance import Trust, least_trusted
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store.trial_table import from_table, to_table

FULL = Trial(
    trial_id="t",
    workload={},
    config={"a": 1},
    state=State.COMPLETED,
    provenance={"owner": "ab12", "uncommitted_changes": False},
    command={"words": ("torchrun", "t.py"), "hook fsdp": "FULL_SHARD"},
    trust=Trust.TEAM,
)


def test_the_level_of_several_is_the_lowest() -> None:
    for order in permutations(Trust):
        assert least_trusted(order) is Trust.PUBLIC
    assert least_trusted([Trust.OWN, Trust.TEAM]) is Trust.TEAM
    assert least_trusted([]) is Trust.OWN


def test_a_trial_keeps_its_source_in_events_and_in_the_cache() -> None:
    events = [Event.from_json(event.to_json()) for event in trial_events(FULL)]
    assert fold_events(events) == [FULL]
    assert from_table(json.loads(json.dumps(to_table([FULL, FULL])))) == [FULL, FULL]


def test_an_event_of_ones_own_states_no_level() -> None:
    event = Event(kind=EventKind.STARTED, trial_id="t")
    assert not {"trust", "provenance", "command"} & event.to_json().keys()
    assert Event.from_json(event.to_json()).trust is Trust.OWN


@pytest.mark.parametrize("fields", [{"trust": "friend"}, {"trust": 1}, {"provenance": 3}, {"command": {"words": {}}}])
def test_a_source_that_is_none_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        Event.from_json({**Event(kind=EventKind.STARTED, trial_id="t").to_json(), **fields})


def test_secrets_in_a_source_are_masked() -> None:
    event = Event(kind=EventKind.STARTED, trial_id="t", command={"words": ("t.py", "hf_AbCdEfGhIjKlMnOpQrStUvWx")})
    assert event.to_json()["command"] == {"words": ["t.py", "***"]}
