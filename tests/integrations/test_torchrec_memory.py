"""Memory of real recommenders by the sharding of a large table, against the formula of the fullest rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integrations.recorded_launch import launched, needs
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_limit import calibrate_limit
from torchx_cubicml.predictors.roofline.recommender_memory import recommender_memory_parts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.launch, needs("torchrec", "fbgemm_gpu", target="test-torchrec")]

GIB = 2.0**30


def test_the_peak_of_the_fullest_rank_follows_its_shards(tmp_path: Path) -> None:
    rows, peaks = [], []
    for word in ("table_wise", "row_wise"):
        words = ("--tables", "large", "--sharding", word, "--steps", "20", "--batch-size", "32")
        folder = tmp_path / word
        folder.mkdir()
        trial, _ = launched(folder, "train_torchrec.py", *words)
        assert trial.measurement is not None
        assert trial.measurement.peak_gib is not None
        rows.append(training_row(trial))
        peaks.append(trial.measurement.peak_gib * GIB)
    layout = RecommenderLayout.from_rows(rows)
    whole, half = recommender_memory_parts(layout)["embeddings"].tolist()
    assert whole == pytest.approx(2 * half, rel=0.01)
    # Fused Adagrad keeps one state for each number of a table, so the table counts twice.
    assert peaks[0] - peaks[1] == pytest.approx(2 * (whole - half), rel=0.15)
    peak_bytes, ran = np.array(peaks), np.ones(2)
    limit = calibrate_limit(layout, ran=ran, certain=0.0 * ran, peak_bytes=peak_bytes)
    parts = np.sum(list(recommender_memory_parts(layout).values()), axis=0)
    assert limit.factor * parts + limit.reserved == pytest.approx(peak_bytes, rel=0.1)
