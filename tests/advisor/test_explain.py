from __future__ import annotations

from torchx_cubicml.advisor.explain import against_baseline, differences, distance, without_effect

CONFIG = {"micro_batch_size": 8, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "FULL_SHARD")}


def test_a_gain_says_whether_it_is_inside_the_noise() -> None:
    assert against_baseline(1.4, 1.2, 1.6) == "1.40x your config (1.20x to 1.60x)"
    assert "within the noise" in against_baseline(1.0, 0.9, 1.1)
    assert "within the noise" not in against_baseline(0.8, 0.7, 0.9)


def test_the_nearest_differs_in_the_fewest_entries() -> None:
    far = {**CONFIG, "micro_batch_size": 1}
    near = {**CONFIG, "sharding_strategy": ("NO_SHARD", "FULL_SHARD", "FULL_SHARD")}
    assert distance(CONFIG, near) < distance(CONFIG, far)
    assert differences(CONFIG, near) == "sharding_strategy differs in 1 of 3 layers"


def test_one_word_for_all_layers_differs_as_a_whole() -> None:
    other = {**CONFIG, "sharding_strategy": "FULL_SHARD"}
    assert distance(CONFIG, other) == 1.0
    assert differences(CONFIG, other).startswith("sharding_strategy FULL_SHARD instead of")


def test_parameters_with_effect_are_not_named() -> None:
    assert without_effect([]) == ""


def test_parameters_without_effect_are_named() -> None:
    assert without_effect(["a", "b"]) == "a, b kept as typed: no effect observed"
