"""What stands for a fact that is not told, and what is learned about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from torchx_cubicml.predictors.roofline.calibration import calibrate
from torchx_cubicml.predictors.roofline.completed_layout import completed, relevant
from torchx_cubicml.predictors.roofline.constants import DEFAULTS, SHARES
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.memory import calibrate_memory, memory_parts
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.predictors.roofline.unknown_facts import MEDIANS

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.calibration import Calibration
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array
    from torchx_cubicml.records.values import Value

    Row = dict[str, Value]

TOLD: Row = {
    "n_layers": 24,
    "d_model": 2048,
    "n_heads": 16,
    "d_ff": 8192,
    "seq_len": 4096,
    "micro_batch_size": 2,
    "world_size": 16,
    "tp_degree": 2,
    "vocab_size": 50_000,
    "zero_stage": 1,
    "attention_kernel": "flash",
    "device": "NVIDIA A100-SXM4-80GB",
}
VALUES: dict[str, tuple[Value, ...]] = {
    "attention_kernel": ("flash", "math"),
    "zero_stage": (0, 1, 2, 3),
    "vocab_size": (8_000, 32_000, 128_000, 400_000),
}
ABOVE = 1.2  # two standard deviations above a data sheet


def layout_of(*rows: Row) -> TrainingLayout:
    return TrainingLayout.of(Facts.from_rows(rows))


def without(rows: list[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def drawn_rows(seed: int, count: int, **facts: Value) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    while len(rows) < count:
        layers, width = ((16, 2048), (24, 4096), (40, 5120))[int(rng.integers(3))]
        row: Row = {
            **TOLD,
            "n_layers": layers,
            "d_model": width,
            "d_ff": 4 * width,
            "n_heads": width // 128,
            "seq_len": 2 ** int(rng.integers(10, 14)),
            "micro_batch_size": 2 ** int(rng.integers(4)),
            "gradient_accumulation_steps": 2 ** int(rng.integers(1, 5)),
            "world_size": 2 ** int(rng.integers(3, 7)),
            "tp_degree": 2 ** int(rng.integers(4)),
            "pp_degree": 2 ** int(rng.integers(2)),
            **{name: values[int(rng.integers(len(values)))] for name, values in VALUES.items()},
            **facts,
        }
        if int(row["tp_degree"]) * int(row["pp_degree"]) <= int(row["world_size"]):  # type: ignore[arg-type]
            rows.append(row)
    return rows


def planted(seed: int) -> Constants:
    rng = np.random.default_rng([seed, 1])
    return {
        name: value * float(np.exp(0.2 * rng.normal())) if name not in MEDIANS else value
        for name, value in DEFAULTS.items()
    }


def measured(rows: list[Row], seed: int) -> Array:
    seconds = step_time(layout_of(*rows), planted(seed)).total()
    return np.asarray(seconds * np.exp(np.random.default_rng([seed, 2]).normal(0.0, 0.05, len(rows))))


def fitted(rows: list[Row], seconds: Array) -> Calibration:
    return calibrate(layout_of(*rows), seconds, np.zeros(len(rows)), rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ()),
        ({"attention_kernel": None}, ("unknown_plain_attention",)),
        ({"zero_stage": None}, ("unknown_states_sharded", "unknown_gathered")),
        ({"zero_stage": None, "world_size": 2}, ()),  # one data-parallel rank has nothing to shard
        ({"zero_stage": None, "sharding_strategy": "DDP"}, ()),
        ({"zero_stage": None, "dp_shard_degree": 1}, ()),
        ({"zero_stage": None, "dp_shard_degree": 8}, ("unknown_states_sharded", "unknown_gathered")),
        ({"vocab_size": None}, ("unknown_vocabulary",)),
        ({"vocab_size": None, "n_params": 24 * 12 * 2048**2 + 50_000 * 2048}, ("counted_embeddings",)),
        ({"vocab_size": None, "n_params": 24 * 12 * 2048**2}, ("unknown_vocabulary",)),  # no embeddings are counted
        ({"vocab_size": None, "n_params": 24 * 12 * 2048**2 * 3}, ("unknown_vocabulary",)),  # something else is
        ({"vocab_size": None, "d_ff": None, "n_params": 1_310_359_552}, ("unknown_vocabulary",)),
    ],
)
def test_what_is_unknown(changes: Row, names: tuple[str, ...]) -> None:
    row = {name: value for name, value in {**TOLD, **changes}.items() if value is not None}
    assert relevant(layout_of(row)) == names


def test_a_layout_that_is_told_stays_the_same_object() -> None:
    layout = layout_of(TOLD)
    assert completed(layout, DEFAULTS) is layout


def test_learned_weights_stand_for_what_is_unknown() -> None:
    [row] = without([TOLD], *VALUES)
    values = {**MEDIANS, "unknown_plain_attention": 1.0, "unknown_states_sharded": 3.0, "unknown_gathered": 0.25}
    layout = completed(layout_of(row, TOLD), values)
    assert layout.plain_attention.tolist() == [0.5, 0.0]
    assert layout.states_sharded.tolist() == [0.75, 1.0]
    assert layout.gathered_each_time.tolist() == layout.gradients_sharded.tolist() == [0.2, 0.0]
    assert layout.vocabulary.tolist() == [50_000.0, 50_000.0]
    assert completed(layout_of(row), {**values, "unknown_states_sharded": 0.1}).states_sharded[0] == 0.2


@pytest.mark.parametrize("copies", [1, 2])
def test_a_vocabulary_is_solved_for(copies: int) -> None:
    total = 24 * 12 * 2048**2 + copies * 60_000 * 2048
    [row] = without([{**TOLD, "n_params": total}], "vocab_size")
    assert completed(layout_of(row), {**MEDIANS, "counted_embeddings": copies}).vocabulary[0] == pytest.approx(60_000)
    assert 40_000 < completed(layout_of(row), MEDIANS).vocabulary[0] < 90_000


@pytest.mark.parametrize(
    ("shape", "matrices"),
    [
        ({"n_layers": 12, "d_model": 768, "d_ff": 3072, "n_params": 124_000_000}, 2),  # GPT-2
        ({"n_layers": 16, "d_model": 2048, "d_ff": 8192, "n_params": 1_342_177_280}, 3),
        ({"n_layers": 32, "d_model": 4096, "d_ff": 11_008, "n_params": 6_738_000_000}, 3),  # LLaMA 7B
        ({"n_layers": 32, "d_model": 4096, "d_ff": 16_384, "n_params": 6_442_450_944}, 2),  # blocks alone
    ],
)
def test_a_gated_mlp_is_recognised_without_a_vocabulary(shape: Row, matrices: int) -> None:
    layout = layout_of({**without([TOLD], "vocab_size")[0], **shape})
    share = float(shape["d_ff"]) / float(shape["d_model"])  # type: ignore[arg-type]
    assert layout.layer_params[0] == pytest.approx((4 + matrices * share) * float(shape["d_model"]) ** 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kernel", "low", "high"), [("math", 0.4, 1.0), ("flash", 0.0, 0.2)])
def test_the_weight_of_a_kernel_is_learned(kernel: str, low: float, high: float) -> None:
    rows = drawn_rows(3, 150, attention_kernel=kernel)
    seconds = measured(rows, 3)
    found = fitted(without(rows, "attention_kernel"), seconds).constants
    odds = found["unknown_plain_attention"]
    assert low < odds / (1.0 + odds) < high
    told = fitted(rows, seconds).constants
    assert found["link_tp"] == pytest.approx(told["link_tp"], rel=0.2)
    assert found["gemm_efficiency"] == pytest.approx(told["gemm_efficiency"], rel=0.1)


def test_silent_data_leave_the_prior() -> None:
    rows = drawn_rows(4, 40)
    found = fitted(rows, measured(rows, 4)).constants
    assert {name: found[name] for name in MEDIANS} == pytest.approx(MEDIANS)


@pytest.mark.parametrize(("stage", "low", "high"), [(0, 0.0, 0.35), (1, 0.65, 1.0)])
def test_peaks_tell_whether_states_are_sharded(stage: int, low: float, high: float) -> None:
    rows = drawn_rows(5, 80, zero_stage=stage)
    peaks = np.asarray(sum(memory_parts(layout_of(*rows)).values()))
    layout = layout_of(*without(rows, "zero_stage"))
    found = calibrate_memory(layout, ran=np.ones(80), certain=np.zeros(80), peak_bytes=peaks)
    odds = found.unknown["unknown_states_sharded"]
    assert low <= odds / (1.0 + odds) <= high
    total = np.asarray(sum(memory_parts(layout, found.unknown).values()))
    assert np.abs(np.log(total / peaks)).mean() < 0.2


@given(seed=st.integers(0, 10**6), fact=st.sampled_from(sorted(VALUES)))
def test_a_prediction_without_a_fact_lies_among_those_of_its_values(seed: int, fact: str) -> None:
    rows = drawn_rows(seed, 4)
    constants = planted(seed)
    of_values = [
        step_time(layout_of(*[{**row, fact: value} for row in rows]), constants).total() for value in VALUES[fact]
    ]
    found = step_time(layout_of(*without(rows, fact)), constants).total()
    assert (found >= 0.95 * np.min(of_values, axis=0)).all()
    assert (found <= 1.05 * np.max(of_values, axis=0)).all()
    memory = [sum(memory_parts(layout_of(*[{**row, fact: value} for row in rows])).values()) for value in VALUES[fact]]
    bytes_found = np.asarray(sum(memory_parts(layout_of(*without(rows, fact))).values()))
    assert (bytes_found >= 0.95 * np.min(memory, axis=0)).all()
    assert (bytes_found <= 1.05 * np.max(memory, axis=0)).all()


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), fact=st.sampled_from(sorted(VALUES)))
def test_constants_stay_physical_without_a_fact(seed: int, fact: str) -> None:
    rows = drawn_rows(seed, 40)
    found = fitted(without(rows, fact), measured(rows, seed)).constants
    assert {name: found[name] for name in SHARES if found[name] > ABOVE} == {}


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), fact=st.sampled_from(sorted(VALUES)))
def test_a_constant_fact_is_not_needed_to_rank(seed: int, fact: str) -> None:
    value = VALUES[fact][seed % len(VALUES[fact])]
    rows = drawn_rows(seed, 40, **{fact: value})
    seconds = measured(rows, seed)
    taus = []
    for told in (rows, without(rows, fact)):
        expected = fitted(told, seconds).expect(layout_of(*told), inside=np.ones(40)).logarithm
        taus.append(float(kendalltau(expected, seconds)[0]))
    assert taus[1] > taus[0] - 0.05
