from __future__ import annotations

import pytest

from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

NEEDED = {"n_layers": 12, "d_model": 768, "seq_len": 1024, "micro_batch_size": 8, "world_size": 16}


def layout_of(**changes: object) -> TrainingLayout:
    row = {name: value for name, value in {**NEEDED, **changes}.items() if value is not None}
    return TrainingLayout.of(Facts.from_rows([row]))


def test_the_required_facts_are_enough() -> None:
    layout = layout_of()
    assert layout.covered.all()
    assert layout.layer_params[0] == 12 * 768**2
    assert (layout.dp[0], layout.tp[0], layout.pp[0], layout.rounds[0]) == (16, 1, 1, 1)


@pytest.mark.parametrize("name", NEEDED)
def test_a_row_without_a_required_fact_is_not_covered(name: str) -> None:
    assert not layout_of(**{name: None}).covered.any()


@pytest.mark.parametrize(
    "instead",
    [
        {"d_model": None, "n_params": 12 * 12 * 768**2},
        {"world_size": None, "dp_degree": 2, "tp_degree": 8},
        {"world_size": None, "nnodes": 2, "nproc_per_node": 8},
    ],
    ids=["parameters for the width", "degrees for the devices", "nodes for the devices"],
)
def test_substitute_facts_serve(instead: dict[str, object]) -> None:
    layout = layout_of(**instead)
    assert layout.covered.all()
    assert layout.width[0] == pytest.approx(768)
    assert layout.world[0] == 16


def test_more_parallelism_than_devices_is_not_covered() -> None:
    assert not layout_of(tp_degree=32).covered.any()


def test_a_layer_is_sharded_once() -> None:
    layout = layout_of(zero_stage=3, sharding_strategy="SHARD_GRAD_OP")
    assert (layout.states_sharded[0], layout.gathered_each_time[0], layout.gathered_once[0]) == (1, 1, 0)


def test_rounds_follow_from_the_global_batch() -> None:
    assert layout_of(global_batch_size=512, tp_degree=2).rounds[0] == 8


@pytest.mark.parametrize(
    ("facts", "params"),
    [
        ({"d_ff": 3072}, 12 * 768**2),
        ({"d_ff": 2048}, (4 + 3 * 2048 / 768) * 768**2),
        ({"d_ff": 3072, "n_params": 12 * 16 * 768**2}, 16 * 768**2),
        ({"d_ff": 3072, "n_params": 12 * 12 * 768**2 + 2 * 768 * 50000, "vocab_size": 50000}, 12 * 768**2),
        ({"n_heads": 12, "n_kv_heads": 3}, (2.5 + 8) * 768**2),
        ({"n_experts": 8, "n_active_experts": 2}, (4 + 8 * 8) * 768**2),
    ],
    ids=["classical", "gated by its width", "gated by the count", "untied embeddings", "grouped queries", "experts"],
)
def test_parameters_of_a_block_follow_from_the_dimensions(facts: dict[str, object], params: float) -> None:
    assert layout_of(**facts).layer_params[0] == pytest.approx(params)


@pytest.mark.parametrize(
    ("words", "peak"),
    [
        ({"device": "H100", "precision": "bf16"}, 989.4e12),
        ({"device": "H100", "precision": "amp_bf16"}, 989.4e12),
        ({"device": "H100", "precision": "fp8"}, 1978.9e12),
        ({"device": "A100", "precision": "fp32"}, 19.5e12),
        ({"device": "A100"}, 312e12),
        ({"device": "cpu"}, 0.1e12),
        ({"device": "abacus"}, 989.4e12),
        ({}, 989.4e12),
    ],
    ids=str,
)
def test_the_peak_is_that_of_device_and_precision(words: dict[str, object], peak: float) -> None:
    assert layout_of(**words).peak[0] == pytest.approx(peak)


def test_a_rack_of_fast_links_is_one_node() -> None:
    assert layout_of(device="NVIDIA GB200", nproc_per_node=4).per_node[0] == 72
    assert layout_of(device="NVIDIA H100", nproc_per_node=4).per_node[0] == 4


@pytest.mark.parametrize(
    "others",
    [[{"device": "a100"}], [{"precision": "BF16"}], [{"device": "a100", "precision": "BF16"}, {"device": "H100"}]],
    ids=["device", "precision", "both"],
)
def test_a_row_is_read_alike_beside_other_spellings(others: list[dict[str, str]]) -> None:
    row = {"n_layers": 24, "d_model": 1024, "seq_len": 1024, "micro_batch_size": 4, "world_size": 8}
    row |= {"device": "A100", "precision": "bf16"}
    alone = TrainingLayout.of(Facts.from_rows([row]))
    beside = TrainingLayout.of(Facts.from_rows([row, *({**row, **other} for other in others)]))
    for name in ("peak", "memory", "width_bytes", "memory_bandwidth"):
        assert getattr(beside, name)[0] == pytest.approx(getattr(alone, name)[0])
