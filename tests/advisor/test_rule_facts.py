"""Observed counts: of heads where tensor parallelism cannot have split them, and of experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.advisor import suggest
from torchx_cubicml.advisor.rule_facts import with_observed_counts
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

SPACE = parse_space("[parameters.tp_degree]\nchoices = [1, 2, 3, 4]\nflag = '--tp'", where="s.toml")


def ran(tp: int | None, heads: int) -> Trial:
    config = {} if tp is None else {"tp_degree": tp}
    trial = Trial.completed(workload={"world_size": 12}, config=config, tokens_per_second=9.0 + (tp or 0))
    return replace(trial, observed={"n_heads": heads})


@pytest.mark.parametrize(
    ("trials", "known"),
    [
        ([ran(1, 8)], 8),
        ([ran(2, 8), ran(4, 8)], 8),
        ([ran(2, 8)], None),  # perhaps 8 of 16
        ([ran(2, 8), ran(4, 4)], None),
        ([ran(1, 8), ran(2, 4)], None),
        ([ran(None, 8)], None),
        ([], None),
    ],
    ids=[
        "without tensor parallelism",
        "equal at two degrees",
        "at one degree alone",
        "another count at another degree",
        "halved by tensor parallelism",
        "at an unknown degree",
        "no trial",
    ],
)
def test_heads_are_known_if_they_do_not_depend_on_the_degree(trials: list[Trial], known: int | None) -> None:
    assert with_observed_counts(SPACE, trials).known.get("n_heads") == known


def test_what_the_command_states_is_kept() -> None:
    stated = replace(SPACE, known={"n_heads": 16})
    assert with_observed_counts(stated, [ran(1, 8)]).known == {"n_heads": 16}
    without = replace(SPACE, rules=())
    assert with_observed_counts(without, [ran(1, 8)]) is without


def degrees(*trials: Trial) -> set[object]:
    found = suggest(SPACE, workload={"world_size": 12}, current={"tp_degree": 1}, trials=trials, count=4)
    return {suggestion.config["tp_degree"] for suggestion in found}


def test_observed_heads_rule_out_degrees_until_a_launch_contradicts_them() -> None:
    assert degrees() == {1, 2, 3, 4}
    assert degrees(ran(1, 8)) == {2, 4}
    assert degrees(ran(1, 8), ran(3, 8)) == {2, 4}
    assert degrees(ran(1, 6), ran(4, 6)) == {2, 3}


@pytest.mark.parametrize(
    ("counts", "known"), [([8], 8), ([8, 8], 8), ([8, 4], None), ([], None), ([True], None), (["8"], None)]
)
def test_experts_are_known_if_all_launches_observed_as_many(counts: list[object], known: int | None) -> None:
    trials = [replace(ran(2, 8), observed={"n_experts": count}) for count in counts]
    assert with_observed_counts(SPACE, trials).known.get("n_experts") == known


def test_observed_experts_rule_out_degrees() -> None:
    space = parse_space('trainer = "torchtitan"\n[parameters]\nep_degree = "auto"', where="s.toml")
    trial = Trial.completed(workload={"world_size": 8}, config={"ep_degree": 1}, tokens_per_second=9.0)
    for count, legal in ((12, {2, 4}), (8, {2, 4, 8})):
        trials = [replace(trial, observed={"n_experts": count})]
        found = suggest(space, workload={"world_size": 8}, current={"ep_degree": 1}, trials=trials, count=4)
        assert {suggestion.config["ep_degree"] for suggestion in found} == legal
