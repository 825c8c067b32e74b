"""The plan of TorchRec's planner, as launches have shown it, in the rows of the formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.breakdown import Breakdowns
from torchx_cubicml.advisor.breakdown_text import breakdown_lines
from torchx_cubicml.advisor.observed_plan import observed_plan, with_plan
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout, tables_of_unknown_plan
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

AS = {"tables": "embedding_sharding"}
TABLES: dict[str, Value] = {"embedding_rows": (4_000_000, 1000), "embedding_dims": (64, 64)}
WORKLOAD: dict[str, Value] = {"program": "a.py", "world_size": 4, "micro_batch_size": 64, "device": "cpu", **TABLES}
PLANNED = ("planner", "planner")
CHOSEN = ("table_wise", "row_wise")
SPACE = SearchSpace(
    parameters=(Parameter(name="embedding_sharding", choices=("planner", "table_wise", "row_wise"), per_layer=2),),
    objective="samples_per_second",
)


def ran(asked: Value, number: int = 1, **observed: Value) -> Trial:
    return Trial(
        trial_id=f"t{number}",
        workload=WORKLOAD,
        config={"tables": asked},
        observed=observed,
        state=State.COMPLETED,
        started_at=f"2026-01-0{number}T00:00:00+00:00",
    )


def test_the_latest_choice_for_each_table_counts() -> None:
    first, second = (
        ran(PLANNED, 1, embedding_sharding=CHOSEN),
        ran(("planner", "row_wise"), 2, embedding_sharding=("row_wise",) * 2),
    )
    assert observed_plan([second, first], AS) == {"embedding_plan": ("row_wise", "row_wise")}
    assert observed_plan([ran("planner", 1, embedding_sharding=CHOSEN)], AS) == {"embedding_plan": CHOSEN}


@pytest.mark.parametrize(
    "trial",
    [
        ran(PLANNED),
        ran(CHOSEN, embedding_sharding=CHOSEN),
        ran(("planner",) * 3, embedding_sharding=CHOSEN),
        ran(PLANNED, embedding_sharding=("planner", "odd")),
        ran(PLANNED, embedding_sharding="table_wise"),
        replace(ran(PLANNED, embedding_sharding=CHOSEN), config={}),
    ],
    ids=["not observed", "not planned", "another number", "no word of a sharding", "no list", "no parameter"],
)
def test_what_shows_no_plan(trial: Trial) -> None:
    assert observed_plan([trial], AS) == {}
    assert with_plan(trial, {}) is trial


def test_the_formulas_take_the_plan_where_a_table_is_left_to_the_planner() -> None:
    row = {**WORKLOAD, "embedding_sharding": ("planner", "row_wise")}
    even, planned, stated = RecommenderLayout.from_rows(
        [row, {**row, "embedding_plan": CHOSEN}, {**row, "embedding_sharding": ("table_wise", "row_wise")}]
    ).load.fullest
    assert not np.allclose(even, planned)
    assert np.allclose(planned, stated)  # the second table is not left to the planner
    assert tables_of_unknown_plan(row) == 1
    assert tables_of_unknown_plan({**row, "embedding_sharding": "planner"}) == 2
    assert tables_of_unknown_plan({**row, "embedding_plan": CHOSEN}) == 0
    assert tables_of_unknown_plan({"embedding_sharding": "planner"}) == 0


@pytest.mark.parametrize("is_observed", [True, False])
def test_a_breakdown_uses_the_plan_or_says_that_it_is_unknown(is_observed: bool) -> None:
    own = {"embedding_sharding": PLANNED}
    trial = replace(
        ran(PLANNED, embedding_sharding=CHOSEN) if is_observed else ran(PLANNED),
        config=own,
        measurement=Measurement(samples_per_second=900.0, mean_step_time_s=0.3, statistic="mean"),
    )
    study = Study.of(SPACE, workload=WORKLOAD, current=own, trials=[trial])
    configs = {"your config": own, "as chosen": {"embedding_sharding": CHOSEN}}
    breakdowns = Breakdowns.estimate(study, configs)
    planned, stated = (breakdowns.of[name].memory_gib["embeddings"] for name in configs)
    assert (planned == pytest.approx(stated)) == is_observed
    lines = [line for line in breakdown_lines(breakdowns) if line.startswith("Unknown")]
    text = (
        "Unknown in your config: the planner's choice for 2 tables, which no launch has shown; estimated as if spread "
        "evenly over the ranks."
    )
    assert lines == ([] if is_observed else [text])
