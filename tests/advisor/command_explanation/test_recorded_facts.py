"""Facts of earlier launches complete a command, as far as nothing that differs may have changed them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.recorded_facts import recorded_facts
from torchx_cubicml.records.arguments import digested_arguments
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from torchx_cubicml.launch.command_facts.stated_settings import Setting
    from torchx_cubicml.records.values import Value

KEY = "5eed"
SIZES: dict[str, Value] = {"n_layers": 12, "d_model": 768, "vocab_size": 50304, "precision": "bf16", "device": "H100"}


def launched(*words: str, trial_id: str = "a", program: str = "train.py", **observed: Value) -> Trial:
    trial = Trial.completed(workload={"program": program, "world_size": 8}, config={}, tokens_per_second=1.0)
    facts = {**SIZES, "n_params": 124_000_000, **observed}
    return replace(trial, trial_id=trial_id, observed=facts, arguments=digested_arguments(words, KEY))


def found(trials: list[Trial], *words: str, **known: Value) -> dict[str, Setting]:
    return recorded_facts(trials, program="train.py", arguments=words, known={"world_size": 8, **known}, keys=(KEY,))


def test_the_same_command_tells_all() -> None:
    facts = found([launched("--data", "c4", "--lr", "0.1")], "--data", "c4", "--lr", "0.2")
    assert {name: facts[name].value for name in SIZES} == SIZES
    assert facts["n_params"].value == 124_000_000
    assert facts["n_layers"].source == "launch a of yours"
    assert not facts["n_layers"].is_assumed


def test_an_unknown_argument_hides_the_sizes_of_the_model() -> None:
    facts = found([launched("--flavour", "small")], "--flavour", "large")
    assert facts.keys().isdisjoint({"n_layers", "d_model", "vocab_size", "n_params"})
    assert (facts["device"].value, facts["device"].is_assumed) == ("H100", True)
    assert facts["device"].source == "launch a of yours, which differs in --flavour"


def test_another_value_of_a_known_flag_hides_that_fact_alone() -> None:
    facts = found([launched("--n_layer", "12")], "--n_layer", "24", n_layers=24)
    assert facts == {}  # a launch that contradicts a size is of another model
    facts = found([launched("--batch_size", "12", micro_batch_size=12)], "--batch_size", "24")
    assert "micro_batch_size" not in facts
    assert facts["n_layers"].value == 12
    assert "n_params" not in facts


def test_the_nearest_launch_counts_and_of_these_the_latest() -> None:
    trials = [
        replace(launched("--a", "1", trial_id="old", n_layers=2), started_at="2026-01-01T00:00:00+00:00"),
        replace(launched("--a", "1", trial_id="new", n_layers=3), started_at="2026-02-01T00:00:00+00:00"),
        replace(launched("--a", "2", trial_id="far", n_layers=4), started_at="2026-03-01T00:00:00+00:00"),
    ]
    assert found(trials, "--a", "1")["n_layers"].value == 3


def test_other_programs_tell_nothing() -> None:
    assert found([launched(program="other.py")]) == {}
    assert found([replace(launched(), arguments=None)]) == {}
