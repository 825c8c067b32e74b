from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.records.values import MAX_NAMES
from torchx_cubicml.store.trial_table import from_table, to_table

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

SHARED: dict[str, Value] = {"n_layers": 2, "program": "train.py"}
FULL = Trial(
    trial_id="a",
    launch_id="l",
    workload=SHARED,
    config={"tp_degree": 1, "sharding": ("A", "B")},
    observed={"n": True, "m": 1, "k": 1.0},
    state=State.TIMEOUT,
    origin=Origin.TUNE,
    attempts=3,
    measurement=Measurement(tokens_per_second=2.0, step_time_s=(0.1, 0.2, 0.3), source="log", is_steady=True),
    reason="slow",
    arguments=("--lr", "0.1"),
    digests={"program": "0123abcd"},
    suggestion={"low": 1.0},
    started_at="2026-01-01",
    ended_at="2026-01-02",
)
LEAST = Trial(trial_id="b", workload=SHARED, config={}, state=State.RUNNING)
EQUAL = Trial(trial_id="c", workload=dict(SHARED), config={}, state=State.PLANNED)


def through_json(table: object) -> dict[str, object]:
    return json.loads(json.dumps(table))


def test_trials_come_back_equal_and_of_one_kind() -> None:
    trials = [FULL, LEAST, EQUAL]
    found = from_table(through_json(to_table(trials)))
    assert found == trials
    assert list(map(repr, found)) == list(map(repr, trials))
    assert found[0].workload is found[1].workload is found[2].workload
    assert from_table(to_table([])) == []


def test_each_fact_and_mapping_is_written_once() -> None:
    table = through_json(to_table([FULL, LEAST, EQUAL]))
    assert table["pairs"] == [
        ["n_layers", 2],
        ["program", "train.py"],
        ["tp_degree", 1],
        ["sharding", ["A", "B"]],
        ["n", True],
        ["m", 1],
        ["k", 1.0],
        ["arguments", ["--lr", "0.1"]],
        ["program", "0123abcd"],
    ]
    assert table["mappings"] == [[0, 1], [2, 3], [4, 5, 6], [7], [8], []]
    assert [[*row[:3], *row[13:]] for row in table["trials"]] == [
        [0, 1, 2, 3, 4, 5, 5, "own"],
        [0, 5, 5, 5, 5, 5, 5, "own"],
        [0, 5, 5, 5, 5, 5, 5, "own"],
    ]


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        (("pairs", 0), ["a"], ValueError),
        (("pairs", 0), 5, RecordError),
        (("pairs", 0, 1), None, RecordError),
        (("mappings", 0), 5, RecordError),
        (("mappings", 0, 0), 9, LookupError),
        (("trials", 0), 5, RecordError),
        (("trials", 0, 0), 9, LookupError),
        *((("trials", 0, place), 5, RecordError) for place in range(3, 8)),
        (("trials", 0, 8), "lost", LookupError),
        (("trials", 0, 9), "mars", LookupError),
        (("trials", 0, 10), 0, RecordError),
        (("trials", 0, 11), 5, RecordError),
        (("trials", 0, 11), [], ValueError),
        (("trials", 0, 11, 4), 5, RecordError),
        (("trials", 0, 12), [], RecordError),
        (("trials", 0, 13), 9, LookupError),
        (("trials", 0, 14), 9, LookupError),
        (("trials", 0, 14), 0, RecordError),  # facts are no digests
        (("trials", 0, 15), 9, LookupError),
        (("trials", 0, 16), 9, LookupError),
        (("trials", 0, 17), "friend", LookupError),
        (("pairs",), 5, RecordError),
        (("mappings",), 5, RecordError),
        (("trials",), 5, RecordError),
    ],
)
def test_a_damaged_table_is_refused(place: tuple[str | int, ...], value: object, error: type[Exception]) -> None:
    table = through_json(to_table([FULL]))
    inner: object = table
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(error):
        from_table(table)


def test_a_mapping_has_at_most_as_many_names_as_a_trial() -> None:
    def table_of(n_names: int) -> dict[str, object]:
        table = through_json(to_table([LEAST]))
        return {**table, "pairs": [[str(n), n] for n in range(n_names)], "mappings": [[*range(n_names)], []]}

    assert MAX_NAMES == 512
    assert len(from_table(table_of(512))[0].workload) == 512
    with pytest.raises(RecordError, match=r"^a trial of the table has 513 names; the limit is 512$"):
        from_table(table_of(513))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"pairs": 5}, "pairs must be a list"),
        ({"mappings": 5}, "mappings must be a list"),
        ({"trials": 5}, "trials must be a list"),
        ({"pairs": [5]}, "a fact must be a list"),
        ({"mappings": [5]}, "a mapping must be a list"),
        ({"trials": [5]}, "a trial must be a list"),
        ({"pairs": [["x", None]]}, r"facts\.x must be"),
    ],
)
def test_the_message_names_the_damaged_part(damage: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=f"^{message}"):
        from_table({"pairs": [], "mappings": [], "trials": [], **damage})
    row = through_json(to_table([FULL]))
    row["trials"][0][11] = 5
    with pytest.raises(RecordError, match=r"^a measurement must be a list"):
        from_table(row)
    row["trials"][0][11] = [None] * 4 + [5] + [None] * (len(Measurement.__dataclass_fields__) - 5)
    with pytest.raises(RecordError, match=r"^step_time_s must be a list"):
        from_table(row)
