"""Recommenders: formulas of the tables' sharding choose launches, and say where the time of a step goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import Study, suggest
from torchx_cubicml.advisor.breakdown import Breakdowns
from torchx_cubicml.advisor.breakdown_text import breakdown_lines
from torchx_cubicml.advisor.surrogates.transfer_prior import recommender_covers, roofline_covers, transformer_covers
from torchx_cubicml.predictors.roofline.recommender_constants import RECOMMENDER_DEFAULTS
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_time import recommender_step_time
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value

WORDS = ("data_parallel", "row_wise", "table_wise")
TABLES: dict[str, Value] = {
    "embedding_rows": (100_000, 400_000, 20_000, 200, 50_000, 24),
    "embedding_dims": (64, 16, 32, 8, 128, 4),
    "embedding_pooling": (2.0, 1.0, 30.0, 1.0, 4.0, 1.0),
}
JOB: dict[str, Value] = {
    "program": "rank.py",
    "world_size": 4,
    "micro_batch_size": 512,
    "n_embedding_tables": 6,
    "device": "cpu",
}
WORKLOAD = {**JOB, **TABLES}
SPACE = SearchSpace(
    parameters=(Parameter(name="embedding_sharding", choices=WORDS, per_layer="n_embedding_tables"),),
    objective="samples_per_second",
)
OWN: Config = {"embedding_sharding": ("table_wise",) * 6}
TRUE = {**RECOMMENDER_DEFAULTS, "row_bytes": 400.0, "table_s": 1e-4, "exchange_s": 5e-4, "all_to_all": 0.3}


def seconds(*configs: Config) -> list[float]:
    """Seconds of a step on a machine whose constants the formulas do not know, and whose network does not overlap."""
    layout = RecommenderLayout.from_rows([{**WORKLOAD, **config} for config in configs])
    parts = recommender_step_time(layout, {**TRUE, "hidden_exchange": 1e-9})
    return np.asarray(np.sum(list(parts.values()), axis=0) + 0.1 * parts["embedding_lookup"]).tolist()


def launch(config: Config, number: int, *, workload: dict[str, Value] = WORKLOAD) -> Trial:
    (step_s,) = seconds(config)
    step_s *= float(np.exp(np.random.default_rng(number).normal(0.0, 0.01)))
    return Trial(
        trial_id=f"t{number}",
        workload=workload,
        config=config,
        state=State.COMPLETED,
        measurement=Measurement(
            samples_per_second=4 * 512 / step_s, mean_step_time_s=step_s, statistic="mean", relative_error=0.01
        ),
    )


def best_after(n_launches: int, workload: dict[str, Value]) -> float:
    """Return the step of the best config that ``n_launches`` launches, each suggested from those before, have found."""
    trials: list[Trial] = []
    for number in range(n_launches):
        (found,) = suggest(SPACE, workload=workload, current=OWN, trials=trials, seed=number)
        trials.append(launch(found.config, number, workload=workload))
    return min(seconds(*(trial.config for trial in trials)))


def test_few_launches_find_a_plan_next_to_the_best_of_hundreds() -> None:
    every = seconds(*({"embedding_sharding": words} for words in product(WORDS, repeat=6)))
    found, without_facts = (best_after(5, workload) for workload in (WORKLOAD, JOB))
    assert found < 1.1 * min(every)
    assert found <= without_facts
    assert seconds(OWN)[0] > 1.2 * min(every)


def test_the_first_launches_include_plans_that_formulas_favour() -> None:
    found = suggest(SPACE, workload=WORKLOAD, current=OWN, trials=[], count=3)
    assert found[0].config == OWN
    assert all("formulas" in each.reason for each in found[1:])
    unknown = suggest(SPACE, workload=JOB, current=OWN, trials=[], count=3)
    assert not any("formulas" in each.reason for each in unknown)


@pytest.mark.parametrize(("workload", "covers"), [(WORKLOAD, True), (JOB, False)], ids=["tables", "none"])
def test_formulas_cover_a_value_per_table(workload: dict[str, Value], covers: bool) -> None:
    trials = [launch(OWN, 0, workload=workload)]
    assert recommender_covers(trials) is roofline_covers(trials) is covers
    assert not transformer_covers(trials)
    assert not recommender_covers([])


def test_the_breakdown_of_a_recommender() -> None:
    other: Config = {"embedding_sharding": ("row_wise",) * 6}
    trials = [launch(config, number) for number, config in enumerate((OWN, other, OWN))]
    study = Study.of(SPACE, workload=WORKLOAD, current=OWN, trials=trials)
    found = Breakdowns.estimate(study, {"own": OWN, "other": other})
    assert found.time.n_launches == 3
    assert found.time.error is not None
    assert found.time.error < 0.25
    for name, config in (("own", OWN), ("other", other)):
        assert found.of[name].measured_s == pytest.approx(seconds(config)[0], rel=0.05)
        assert found.of[name].step_s == pytest.approx(seconds(config)[0], rel=0.25)
    assert found.of["own"].seconds["embedding_imbalance"] > found.of["other"].seconds["embedding_imbalance"]
    text = "\n".join(breakdown_lines(found))
    assert "embedding lookup" in text
    assert "embeddings" in text


def test_the_breakdown_names_the_facts_of_tables_that_are_missing() -> None:
    workload = {name: value for name, value in WORKLOAD.items() if name != "embedding_dims"}
    study = Study.of(SPACE, workload=workload, current=OWN, trials=[])
    assert Breakdowns.estimate(study, {"own": OWN}).lacking == ("embedding_dims",)


def test_poolings_that_differ_by_sampling_keep_the_formulas() -> None:
    """They are observed and no two launches see the same samples; the formulas need one value for each table."""
    observed = {name: value for name, value in TABLES.items() if name != "embedding_pooling"}
    trials = []
    for number, word in enumerate(("table_wise", "row_wise", "table_wise")):
        pooling = tuple(each * (1.0 + 0.01 * number) for each in TABLES["embedding_pooling"])  # type: ignore[union-attr,operator]
        trial = launch({"embedding_sharding": (word,) * 6}, number, workload=JOB)
        trials.append(replace(trial, observed={**observed, "embedding_pooling": pooling}))
    study = Study.of(SPACE, workload=JOB, current=OWN, trials=trials)
    assert recommender_covers(study.posterior.data.own)
    row = study.posterior.rows.of(OWN)
    assert row["embedding_pooling"] == pytest.approx([1.01 * each for each in TABLES["embedding_pooling"]])  # type: ignore[union-attr,operator]
