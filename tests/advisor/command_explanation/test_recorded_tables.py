"""Tables and plans that earlier launches of a recommender's program recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.recorded_tables import recorded_tables
from torchx_cubicml.records.arguments import digested_arguments
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

WORDS = ("--tables", "small", "--batch-size", "64")
OBSERVED: dict[str, Value] = {
    "embedding_rows": (100, 50),
    "embedding_dims": (8, 4),
    "embedding_sharding": ("table_wise", "row_wise"),
    "embedding_ranks": ("0", "0+1"),
    "n_params": 1000,
}


def found(trial: Trial, known: dict[str, Value], arguments: tuple[str, ...] = WORDS) -> dict[str, Value]:
    table = recorded_tables([trial], program="dlrm.py", arguments=arguments, known=known, keys=())
    return {fact: setting.value for fact, setting in table.items()}


def trial(*, program: str = "dlrm.py", world_size: int = 2) -> Trial:
    workload: dict[str, Value] = {"program": program, "world_size": world_size}
    return Trial(
        trial_id="a",
        workload=workload,
        config={},
        observed=OBSERVED,
        arguments=digested_arguments(WORDS),
        state=State.COMPLETED,
    )


def test_a_launch_of_the_same_model_tells_its_tables_and_their_plan() -> None:
    batch = ("--tables", "small", "--batch-size", "256")
    known = found(trial(), {"world_size": 2}, batch)
    assert known["embedding_rows"] == (100, 50)
    assert known["embedding_plan"] == ("table_wise", "row_wise")
    assert known["embedding_ranks"] == ("0", "0+1")


def test_another_model_or_program_tells_nothing() -> None:
    assert found(trial(), {"world_size": 2}, ("--tables", "large", "--batch-size", "64")) == {}
    assert found(trial(program="other.py"), {"world_size": 2}) == {}


def test_a_plan_holds_for_the_same_tables_on_as_many_ranks() -> None:
    assert set(found(trial(), {"embedding_rows": (100, 50), "world_size": 2})) == {"embedding_plan", "embedding_ranks"}
    assert found(trial(), {"embedding_rows": (100, 50), "world_size": 4}) == {}
    assert found(trial(), {"embedding_rows": (100, 51), "world_size": 2}) == {}
