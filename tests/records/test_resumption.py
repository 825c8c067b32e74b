from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.records.resumption import (
    LOADED_FROM,
    SAVED_IN,
    STARTS_ANEW,
    digested,
    folder_id,
    has_same_state,
    resumed_from,
    savers,
    starts_anew,
)
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

WORKLOAD: dict[str, Value] = {"program": "t.py"}


def launch(name: str, *, day: int, arguments: tuple[str, ...] = (), program: str = "t.py", **observed: Value) -> Trial:
    return Trial(
        trial_id=name,
        workload={"program": program},
        config={},
        state=State.COMPLETED,
        observed=observed,
        arguments=arguments,
        digests={"program": "c0de"},
        started_at=f"2026-01-{day:02}T00:00:00+00:00",
        ended_at=f"2026-01-{day:02}T01:00:00+00:00",
    )


def test_a_launch_goes_on_from_the_latest_that_saved_there_before_it() -> None:
    first = launch("first", day=1, **{SAVED_IN: ("a", "b")})
    second = launch("second", day=2, **{SAVED_IN: ("a",), LOADED_FROM: ("b",)})
    third = launch("third", day=3, **{LOADED_FROM: ("a",)})
    other = launch("other", day=2, program="u.py", **{SAVED_IN: ("a",)})
    trials = [third, other, second, first]
    assert [resumed_from(each, trials) for each in (first, second, third)] == ["", "first", "second"]
    assert resumed_from(launch("x", day=4, **{LOADED_FROM: ("z",)}), trials) == ""
    assert [each.trial_id for each in savers(trials, WORKLOAD, {"a"})] == ["first", "second"]


def test_a_digest_needs_the_key_and_tells_who_chose_the_folder() -> None:
    ids = {folder_id("/runs/a"), folder_id("/runs/a", is_named=False)}
    assert len(digested(ids, ["k", "l"])) == 4
    assert digested(ids, []) == frozenset()


OUT = ("--out", "~1")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({STARTS_ANEW: True}, True),
        ({STARTS_ANEW: True, LOADED_FROM: ("r",)}, False),
        ({SAVED_IN: ("r", "v1")}, True),
        ({SAVED_IN: ("r", "v0")}, False),
        ({}, False),
    ],
    ids=["replaced", "loaded all the same", "a folder for each launch", "the same folder", "nothing known"],
)
def test_earlier_launches_show_whether_a_command_begins_anew(second: dict[str, Value], expected: bool) -> None:
    earlier = [
        launch("one", day=1, arguments=OUT, **{SAVED_IN: ("r", "v0")}),
        launch("two", day=2, arguments=OUT, **{SAVED_IN: ("r",), **second}),
    ]
    earlier = earlier[:1] if not second else earlier
    assert starts_anew(earlier, ["--out", "runs"], {"c0de"}) is expected
    assert not starts_anew(earlier, ["--out", "runs"], {"another code"})
    assert not starts_anew(earlier, ["--out", "runs", "--overwrite"], {"c0de"})


def test_recomputation_is_no_part_of_the_state() -> None:
    one: dict[str, Value] = {"micro_batch_size": 2, "activation_checkpointing": "full", "prefetch_factor": 2}
    assert has_same_state(one, {**one, "activation_checkpointing": "none", "prefetch_factor": 8})
    assert not has_same_state(one, {**one, "micro_batch_size": 4})
    assert has_same_state(one, {**one, "tp_degree": 2})  # the first one may have had it, too
