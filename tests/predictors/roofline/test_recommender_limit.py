"""Memory limit of recommenders: by the formula's bytes, by measured peaks, and by the planner's reservation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_limit import RecommenderLimit, calibrate_limit
from torchx_cubicml.predictors.roofline.recommender_memory import recommender_memory_parts

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

ROW: dict[str, Value] = {
    "embedding_rows": (100_000_000, 1000),
    "embedding_dims": (128, 128),
    "embedding_sharding": ("table_wise", "table_wise"),
    "micro_batch_size": 512,
    "world_size": 8,
    "device": "NVIDIA H100 80GB HBM3",
}
NONE = np.full(1, np.nan)
ONE, ZERO = np.ones(1), np.zeros(1)


def layout(*changes: dict[str, Value]) -> RecommenderLayout:
    return RecommenderLayout.from_rows([{**ROW, **each} for each in changes])


def test_a_large_table_fits_by_its_sharding() -> None:
    found = layout({}, {"embedding_sharding": ("row_wise", "table_wise")}, {"embedding_rows": (200_000_000, 1000)})
    odds = RecommenderLimit().log_odds(found)
    assert odds[1] == pytest.approx(3.0, abs=0.01)  # of another failure; an eighth of the table is 6.4 GB
    assert 0.0 < odds[0] < odds[1]  # 51 GB of 80
    assert odds[2] < -3.0  # 102 GB of 80


def test_the_pressure_is_in_doublings_of_the_usable_memory() -> None:
    found = layout({})
    whole = sum(float(part[0]) for part in recommender_memory_parts(found).values())
    limit = RecommenderLimit(factor=0.5, reserved=2e9)
    assert limit.pressure(found)[0] == pytest.approx(np.log2((0.5 * whole + 2e9) / (0.92 * found.memory[0])))


def test_the_planner_leaves_no_table_in_what_it_reserves() -> None:
    small, large = RecommenderLimit().pressure(layout({"reserved_share": 0.02}, {"reserved_share": 0.5})).tolist()
    assert small == pytest.approx(RecommenderLimit().pressure(layout({}))[0])
    parts = recommender_memory_parts(layout({}))
    tables = sum(float(parts[name][0]) for name in ("embeddings", "embedding_states", "embedding_buffers"))
    assert large == pytest.approx(np.log2(tables / (0.5 * layout({}).memory[0])))


def test_peaks_scale_the_formula() -> None:
    rows = [{"embedding_rows": (size, 1000)} for size in (20_000_000, 40_000_000, 60_000_000, 80_000_000)] * 3
    found = layout(*rows)
    whole = np.sum(list(recommender_memory_parts(found).values()), axis=0)
    ran = np.ones(len(rows))
    limit = calibrate_limit(found, ran=ran, certain=0.0 * ran, peak_bytes=1.3 * whole + 3e9)
    assert limit.factor * whole + limit.reserved == pytest.approx(1.3 * whole + 3e9, rel=0.06)
    assert limit.factor > 1.2
    assert limit.reserved > 1.5e9


def test_outcomes_without_peaks_move_the_limit() -> None:
    ran = calibrate_limit(layout({}), ran=ONE, certain=ZERO, peak_bytes=NONE)
    failed = calibrate_limit(layout({}), ran=ZERO, certain=ONE, peak_bytes=NONE)
    odds = [limit.log_odds(layout({}))[0] for limit in (ran, RecommenderLimit(), failed)]
    assert odds == sorted(odds, reverse=True)
    assert odds[0] > odds[2] + 1.0
    assert calibrate_limit(
        layout().at(np.zeros(0, dtype=np.intp)), ran=ONE[:0], certain=ONE[:0], peak_bytes=ONE[:0]
    ) == (RecommenderLimit())
