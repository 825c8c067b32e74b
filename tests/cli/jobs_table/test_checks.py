from __future__ import annotations

import pytest

from torchx_cubicml.cli.jobs_table.checks import disagreements, without_impossible_peak
from torchx_cubicml.records.trial import Trial

GPT = {"n_layers": 24, "d_model": 2048, "n_heads": 16, "n_params": 1_300_000_000, "vocab_size": 50304}
LAYOUT = {"world_size": 16, "dp_degree": 4, "tp_degree": 2, "pp_degree": 2}
BATCH = {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "global_batch_size": 32}
DEVICE = {"device": "A100-80GB", "precision": "bf16"}
SOUND = {**GPT, **LAYOUT, **BATCH, **DEVICE, "nnodes": 2, "nproc_per_node": 8}


def remarks(speed: float = 50_000.0, peak: float | None = 40.0, **facts: object) -> list[str]:
    row = {name: value for name, value in {**SOUND, **facts}.items() if value is not None}
    trial = Trial.completed(workload=row, config={"x": 1}, tokens_per_second=speed, peak_memory_gib=peak)
    return disagreements([trial], ["line 7"])


def test_facts_that_agree_are_not_named() -> None:
    assert remarks() == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"tp_degree": 4}, "line 7: dp_degree 4 x tp_degree 4 x pp_degree 2 = 32, but world_size is 16"),
        ({"dp_degree": None, "tp_degree": 3}, "tp_degree 3 x pp_degree 2 = 6 does not divide world_size 16"),
        ({"nnodes": 4}, "nnodes 4 x nproc_per_node 8 = 32, but world_size is 16"),
        ({"n_params": 7_000_000_000}, "n_params is 7e+09, but n_layers 24 x d_model 2048 make about 1.3e+09"),
        ({"n_params": 130_000_000}, "n_params is 1.3e+08"),
        ({"global_batch_size": 64}, "= 32, but global_batch_size is 64"),
        ({"n_heads": 24}, "n_heads 24 does not divide d_model 2048"),
        ({"n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 16"),
    ],
)
def test_facts_that_cannot_all_be_true_are_named(facts: dict[str, object], words: str) -> None:
    found = remarks(**facts)
    assert any(words in text for text in found), found


@pytest.mark.parametrize(
    "facts",
    [
        {"n_experts": 8, "n_params": 7_000_000_000},
        {"dp_degree": None},
        {"n_params": None, "vocab_size": None},
        {"n_heads": 24, "head_dim": 128},
        {"d_ff": 5504},
        {"world_size": None, "nnodes": None},
        {"n_layers": None, "n_params": 9_000_000_000},
        {"device": "an unknown one"},
    ],
)
def test_what_is_unknown_or_no_dense_transformer_is_not_judged(facts: dict[str, object]) -> None:
    assert remarks(**facts) == []


def test_a_peak_that_the_device_does_not_have_is_left_out() -> None:
    row = Trial.completed(workload=SOUND, config={"x": 1}, tokens_per_second=1.0, peak_memory_gib=120.0)
    assert "A100-80GB has 80; the peak is left out" in disagreements([row], ["line 2"])[0]
    kept = without_impossible_peak(row).measurement
    assert kept is not None
    assert kept.peak_memory_gib is None
    sound = Trial.completed(workload=SOUND, config={"x": 1}, tokens_per_second=1.0, peak_memory_gib=79.0)
    assert without_impossible_peak(sound) is sound


def test_a_throughput_beyond_the_peak_is_named() -> None:
    assert "of the peak of 16 x a100-80 in bf16" in remarks(speed=1_000_000.0)[0]


def test_many_alike_are_counted() -> None:
    trials = [
        Trial.completed(workload={**SOUND, "nnodes": 9, "n_heads": 24}, config={"x": n}, tokens_per_second=1.0)
        for n in range(5)
    ]
    found = disagreements(trials, [f"line {number}" for number in range(2, 7)])
    assert len(found) == 6
    assert found.count("and 3 more rows that disagree in the same way") == 2
