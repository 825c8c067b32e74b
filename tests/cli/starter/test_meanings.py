from __future__ import annotations

import pytest

from torchx_cubicml.cli.starter.meanings import may_change_speed_alone, meaning_of


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("--batch_size", "micro_batch_size"),
        ("--trainer.accumulate-grad-batches", "gradient_accumulation_steps"),
        ("model.nLayer=", "n_layers"),
        ("a.b.vocab_size=", "vocab_size"),
        ("-j", ""),
        ("--workers", "data_workers"),
        ("data.loader_workers=", "data_workers"),
        ("validation.batch_size=", ""),
        ("my_eval.batch_size=", ""),
        ("--test.num_workers", ""),
        ("--eval_batch_size", ""),
        ("lr=", ""),
    ],
)
def test_the_meaning_of_a_name(name: str, meaning: str) -> None:
    assert meaning_of(name) == meaning


@pytest.mark.parametrize("name", ["--prefetch_factor", "trainer.bucket_cap_mb=", "--fused", "runtime.nThreads="])
@pytest.mark.parametrize("value", ["2", "true"])
def test_names_of_speed_are_offered(name: str, value: str) -> None:
    assert may_change_speed_alone(name, value, is_typed=True)
    assert may_change_speed_alone(name, value, is_typed=False)


@pytest.mark.parametrize(
    "name",
    ["--seed", "--lr", "model.depth=", "data.n=", "optimizer.foreach=", "--dropout", "--log_every", "--eval_threads"],
)
def test_other_names_are_not(name: str) -> None:
    assert not may_change_speed_alone(name, "2", is_typed=True)


@pytest.mark.parametrize("name", ["--num-classes", "--depth", "--hidden_width", "trainer.img="])
def test_sizes_of_a_model_are_not_offered(name: str) -> None:
    assert not may_change_speed_alone(name, "12", is_typed=True)


def test_a_depth_of_prefetching_is_no_size_of_a_model() -> None:
    assert may_change_speed_alone("--prefetch-depth", "12", is_typed=False)


def test_a_name_without_a_word_of_speed_is_offered_only_if_typed() -> None:
    assert may_change_speed_alone("--chunks", "2", is_typed=True)
    assert not may_change_speed_alone("--chunks", "2", is_typed=False)


@pytest.mark.parametrize("value", ["", "0.5", "-1", "1e3", "fast", "a/b", "1,2", "${x}"])
def test_only_counts_and_switches_are_offered(value: str) -> None:
    assert not may_change_speed_alone("--prefetch", value, is_typed=True)


def test_secrets_are_not_offered() -> None:
    assert not may_change_speed_alone("--api_key_threads", "2", is_typed=True)
