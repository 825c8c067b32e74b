"""The MFU of a trial by PaLM's definition, against what a public table states, and never from assumed facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.predictors.roofline.utilisation import utilisation_of
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

FACTS: dict[str, Value] = {
    "n_params": 6_658_859_008,
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "seq_len": 2048,
    "vocab_size": 50_368,
    "device": "A100-80GB",
    "precision": "bf16",
    "world_size": 8,
}


def trial(rate: float | None = 20_000.0, **changes: Value | None) -> Trial:
    facts = {name: value for name, value in {**FACTS, **changes}.items() if value is not None}
    return Trial.completed(workload=facts, config={}, tokens_per_second=rate, samples_per_second=10.0)


def test_the_formula_of_palm() -> None:
    flops = 6 * 6_658_859_008 + 12 * 32 * 4096 * 2048
    found = utilisation_of(trial())
    assert found.flops_per_token == pytest.approx(flops)
    assert found.peak_flops == 312e12
    assert found.value == pytest.approx(20_000.0 * flops / (8 * 312e12))
    assert found.why_unknown == ""


@pytest.mark.parametrize(
    ("n_params", "seq_len", "rate", "mfu"),
    [
        (6_918_905_856, 65_536, 7_355.0, 0.4261),
        (6_717_579_264, 16_384, 18_698.0, 0.495),
        (6_684_024_832, 8192, 23_887.0, 0.5071),
    ],
)
def test_public_rows_state_the_same(n_params: int, seq_len: int, rate: float, mfu: float) -> None:
    """MPT-7B on eight A100s, of LLM Foundry's table (mosaicml/llm-foundry, scripts/train/benchmarking/README.md)."""
    found = utilisation_of(trial(rate, n_params=n_params, seq_len=seq_len))
    assert found.value == pytest.approx(mfu, rel=5e-4)


def test_narrow_heads_and_the_number_format_count() -> None:
    assert utilisation_of(trial(head_dim=64)).flops_per_token == pytest.approx(
        6 * 6_658_859_008 + 12 * 32 * 2048 * 2048
    )
    assert utilisation_of(trial(precision="fp32")).peak_flops == 19.5e12
    assert utilisation_of(trial(precision="amp_bf16", device="NVIDIA H100 80GB HBM3")).peak_flops == 989.4e12


def test_what_a_token_does_not_multiply_with_does_not_count() -> None:
    words, attention = 50_368 * 4096, 12 * 32 * 4096 * 2048
    untied = utilisation_of(trial(tied_embeddings=False)).flops_per_token
    assert untied == pytest.approx(6 * (6_658_859_008 - words) + attention)
    expert = 3 * 4096 * 1024
    total = 32 * (4 * 4096**2 + 8 * expert) + words
    sparse = trial(n_params=total, n_experts=8, n_active_experts=2, expert_d_ff=1024, d_ff=1024, n_kv_heads=32)
    active = 32 * (4 * 4096**2 + 2 * expert) + words
    assert utilisation_of(sparse).flops_per_token == pytest.approx(6 * active + attention)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "cpu"}, "a CPU has no peak in the table of devices"),
        ({"device": "Abacus 3000"}, "the peak of the device Abacus 3000 is not known"),
        ({"device": None}, "its device is not recorded"),
        ({"precision": None}, "its number format is not recorded"),
        ({"precision": "nvfp4"}, "the peak in the number format nvfp4 is not known"),
        ({"seq_len": None, "n_layers": None}, "n_layers, seq_len are not recorded"),
        ({"n_params": None}, "n_params is not recorded"),
        ({"n_experts": 8}, "n_active_experts is not recorded"),
        ({"n_trainable_params": 1_000_000}, "some of its parameters are not trained"),
        ({"embedding_rows": (1000, 10)}, "its model has embedding tables"),
        ({"rate": None}, "its tokens per second were not measured"),
        ({"rate": 1e9}, "so a recorded fact is wrong"),
    ],
)
def test_what_is_unknown_is_said_and_not_assumed(changes: dict[str, object], why: str) -> None:
    found = utilisation_of(trial(**changes))  # type: ignore[arg-type]  # fields of any type
    assert found.value is None
    assert why in found.why_unknown
