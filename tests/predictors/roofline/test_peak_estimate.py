"""Peak memory with its doubt: wide without launches, calibrated by them, and honest about how much they tell."""

from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.roofline.peak_estimate import PROCESS, RESERVED, PeakEstimate
from torchx_cubicml.records.values import Value

Row = dict[str, Value]
GPT: Row = {"n_layers": 4, "d_model": 256, "seq_len": 128, "vocab_size": 4096, "world_size": 1, "device": "cpu"}
DLRM: Row = {"embedding_rows": (100_000, 10), "embedding_dims": (64, 8), "world_size": 1, "device": "cpu"}


def rows(count: int, *, program: str = "a.py") -> list[Row]:
    rng = np.random.default_rng(3)
    return [
        {
            **GPT,
            "program": program,
            "n_layers": int(rng.integers(1, 12)),
            "d_model": int(rng.choice([128, 256, 512])),
            "micro_batch_size": int(rng.choice([1, 4, 16])),
            "precision": "fp32",
        }
        for _ in range(count)
    ]


def drawn(estimate: PeakEstimate, given: list[Row], *, factor: float, seed: int) -> list[float]:
    """Peaks of a machine on which all takes ``factor`` as much, with 5 % of noise."""
    noise = np.exp(np.random.default_rng(seed).normal(0.0, 0.05, len(given)))
    return (np.exp(estimate.predict(given).logarithm) * factor * noise).tolist()


@pytest.mark.parametrize("row", [{**GPT, "micro_batch_size": 4}, {**DLRM, "micro_batch_size": 64}])
def test_parts_add_up_to_the_estimate(row: Row) -> None:
    estimate = PeakEstimate()
    parts = estimate.parts(row)
    assert sum(parts.values()) == pytest.approx(float(np.exp(estimate.predict([row]).logarithm[0])))
    assert PROCESS in parts
    assert RESERVED not in parts  # on a host, the interpreter in the place of a device's context
    assert RESERVED in estimate.parts({**row, "device": "H100"})


def test_launches_narrow_the_doubt_and_move_the_estimate() -> None:
    given = rows(40)
    peaks = drawn(PeakEstimate(), given, factor=1.5, seed=0)
    before, after = PeakEstimate(), PeakEstimate.fit(given[:30], peaks[:30], program="a.py")
    truth = np.log(peaks[30:])
    assert np.all(after.predict(given[30:]).spread < 0.5 * before.predict(given[30:]).spread)
    errors = np.abs(after.predict(given[30:]).logarithm - truth)
    assert float(errors.mean()) < 0.25 * float(np.abs(before.predict(given[30:]).logarithm - truth).mean())


def test_intervals_hold_about_four_fifths_after_launches_of_other_sizes() -> None:
    held = []
    for seed in range(12):
        given = rows(30)
        order = np.random.default_rng(seed).permutation(30).tolist()
        given = [given[index] for index in order]
        peaks = drawn(PeakEstimate(), given, factor=1.3, seed=seed)
        found = PeakEstimate.fit(given[:20], peaks[:20], program="a.py").predict(given[20:])
        held += (np.abs(np.log(peaks[20:]) - found.logarithm) < 1.2816 * found.spread).tolist()
    assert 0.7 <= float(np.mean(held)) <= 0.97  # 120 seeded draws; the prior still widens them a little


def test_the_error_is_that_of_the_program_at_hand_and_not_that_of_a_steadier_one() -> None:
    own, other = rows(20), rows(60, program="b.py")
    noise = np.exp(np.random.default_rng(5).normal(0.0, 0.15, 20))
    peaks = [
        *(np.exp(PeakEstimate().predict(own).logarithm) * noise),
        *drawn(PeakEstimate(), other, factor=1.0, seed=6),
    ]
    noisy, steady = (PeakEstimate.fit([*own, *other], peaks, program=each).error for each in ("a.py", "b.py"))
    assert noisy > 0.1
    assert steady < 0.08


def test_a_program_without_launches_is_less_certain_than_one_with_them() -> None:
    given = rows(20)
    estimate = PeakEstimate.fit(given, drawn(PeakEstimate(), given, factor=1.0, seed=1), program="b.py")
    other = estimate.predict([{**given[0], "program": "b.py"}]).spread
    assert float(other[0]) > 1.5 * float(estimate.predict([given[0]]).spread[0])


def test_rows_without_the_needed_facts_are_unknown() -> None:
    estimate = PeakEstimate.fit([{"device": "cpu"}], [1.0])
    assert estimate.n_measured == 0
    assert np.isnan(estimate.predict([{"device": "cpu"}]).logarithm).all()
    assert estimate.parts({"device": "cpu"}) == {}
