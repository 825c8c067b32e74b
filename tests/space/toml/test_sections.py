from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import RewriteRules
from torchx_cubicml.space.toml import parse_space

PARAMETER = '[parameters.tp_degree]\nchoices = [1, 2]\nflag = "--tp"\n'


def rules(text: str) -> RewriteRules:
    return parse_space(f"{PARAMETER}[rewrite]\n{text}", where="space.toml").rewrite


def test_without_rules_the_usual_ones_hold() -> None:
    assert parse_space(PARAMETER, where="space.toml").rewrite == RewriteRules()
    assert rules("freeze = []") == RewriteRules()
    assert RewriteRules().explore == 0.0


def test_rules_are_read() -> None:
    text = 'min_gain = 0.05\nmin_fit = 1\nfreeze = ["tp_degree"]\nexplore = 0.1\nexplore_budget_gpu_hours = 20'
    assert rules(text) == RewriteRules(
        min_gain=0.05, min_fit=1.0, freeze=("tp_degree",), explore=0.1, explore_budget_device_hours=20.0
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_gian = 0.1", r"space.toml: rewrite: unknown key 'min_gian'; did you mean 'min_gain'\?"),
        ("min_gain = -0.1", r"rewrite.min_gain: must be a number >= 0, got -0.1"),
        ("min_gain = true", r"rewrite.min_gain: must be a number"),
        ("min_fit = 1.1", r"rewrite.min_fit: must be a number from 0 to 1, got 1.1"),
        ('freeze = "tp_degree"', r"rewrite.freeze: must be a list"),
        ('resume = ["tp"]', r"rewrite.resume: unknown parameter 'tp'; .*choose from tp_degree, reshards"),
        ('freeze = ["tp"]', r"rewrite.freeze: unknown parameter 'tp'; .*choose from tp_degree"),
        ("explore = 0.1", r"rewrite.explore: needs explore_budget_gpu_hours"),
        ("explore = 2\nexplore_budget_gpu_hours = 1", r"rewrite.explore: must be a number from 0 to 1"),
    ],
)
def test_mistakes_are_reported_with_key_and_rule(text: str, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        rules(text)


def test_a_parameter_may_permit_a_changed_training() -> None:
    (parameter,) = parse_space(f"{PARAMETER}changes_training = true", where="space.toml").parameters
    assert parameter.changes_training
    with pytest.raises(SpaceError, match=r"parameters.tp_degree.changes_training: must be true or false, got 1"):
        parse_space(f"{PARAMETER}changes_training = 1", where="space.toml")


@pytest.mark.parametrize(("line", "expected"), [("", 4), ("baseline_every = 0", 0), ("baseline_every = 10", 10)])
def test_how_often_the_own_config_runs_can_be_set(line: str, expected: int) -> None:
    assert rules(line).baseline_every == expected


@pytest.mark.parametrize("value", ["1", "-1", "2.5", "true", "'4'"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(SpaceError, match=r"^space.toml: rewrite.baseline_every: must be "):
        rules(f"baseline_every = {value}")
