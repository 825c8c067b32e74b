"""Open facts shift and widen a forecast by what their other values would change."""

from __future__ import annotations

import math

import pytest

from torchx_cubicml.advisor.command_explanation.doubtful_facts import OtherValue, alternatives, with_doubt
from torchx_cubicml.advisor.command_explanation.estimates import LogNormal
from torchx_cubicml.launch.command_facts.known_facts import CommandFacts


def forecast(row: dict) -> LogNormal:
    return LogNormal({"fp32": 2.0, "bf16": 1.0}[row["precision"]], 0.3)


def test_a_certain_fact_changes_nothing() -> None:
    assert with_doubt(forecast, {"precision": "bf16"}, []) == LogNormal(1.0, 0.3)


def test_variance_is_that_of_the_mixture() -> None:
    found = with_doubt(forecast, {"precision": "bf16"}, [OtherValue("precision", "fp32", 0.2)])
    assert found is not None
    assert found.logarithm == pytest.approx(1.2)
    assert found.spread == pytest.approx(math.sqrt(0.09 + 0.2 * 0.8))


def test_values_of_one_fact_exclude_each_other() -> None:
    others = [OtherValue("precision", "fp32", 0.5), OtherValue("precision", "bf16", 0.5)]
    found = with_doubt(forecast, {"precision": "bf16"}, others)
    assert found is not None
    assert (found.logarithm, found.spread) == (pytest.approx(1.5), pytest.approx(math.sqrt(0.09 + 0.25)))


def test_what_is_not_covered_has_no_forecast() -> None:
    assert with_doubt(lambda row: None, {}, [OtherValue("precision", "fp32", 0.2)]) is None


def test_unknown_facts_have_all_values_and_assumed_ones_the_others() -> None:
    known = CommandFacts(
        facts={"precision": "bf16", "micro_batch_size": 8},
        sources={},
        assumed=frozenset({"precision", "micro_batch_size"}),
        unknown=("compile",),
    )
    found = {(each.fact, each.value): each.probability for each in alternatives(known)}
    assert found == {
        ("precision", "fp32"): 0.1,
        ("compile", False): 0.5,
        ("compile", True): 0.5,
        ("micro_batch_size", 4): 0.05,
        ("micro_batch_size", 16): 0.05,
    }
