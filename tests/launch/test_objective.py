from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.advisor import Study, best_known
from torchx_cubicml.launch import with_measured_objective
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.choice import DecisionContext
from torchx_cubicml.space.toml import parse_space

TEXT = "[parameters.knob]\nchoices = [1, 2]\nflag = '--knob'\n"
SPACE = parse_space(TEXT, where="space.toml")
WORKLOAD = {"program": "train.py"}


def trial_of(knob: int = 1, **speeds: float) -> Trial:
    return Trial.completed(workload=WORKLOAD, config={"knob": knob}, **speeds)


TOKENS, SAMPLES = trial_of(tokens_per_second=1.0), trial_of(samples_per_second=1.0)
BOTH = trial_of(tokens_per_second=1.0, samples_per_second=1.0)


@pytest.mark.parametrize(
    ("trials", "objective", "line"),
    [
        ([], "tokens_per_second", ""),
        ([BOTH, TOKENS], "tokens_per_second", ""),
        (
            [SAMPLES],
            "samples_per_second",
            "samples_per_second is compared, as no launch of this workload counted tokens",
        ),
        (
            [SAMPLES, SAMPLES, BOTH],
            "tokens_per_second",
            "tokens_per_second is compared, which 2 of 3 launches of this workload do not have; "
            "set objective in the space file to choose",
        ),
        ([replace(SAMPLES, workload={"program": "other.py"})], "tokens_per_second", ""),
        ([replace(SAMPLES, measurement=None)], "tokens_per_second", ""),
    ],
    ids=["nothing", "tokens", "samples", "both", "another workload", "not measured"],
)
def test_the_objective_is_the_one_that_was_measured(trials: list[Trial], objective: str, line: str) -> None:
    space, found = with_measured_objective(SPACE, trials, workload=WORKLOAD)
    assert (space.objective, found) == (objective, line)
    back, _ = with_measured_objective(space, [TOKENS], workload=WORKLOAD)
    assert back.objective == "tokens_per_second"


@pytest.mark.parametrize("stated", ["tokens_per_second", "samples_per_second"])
def test_a_stated_objective_stays(stated: str) -> None:
    space = parse_space(f"objective = '{stated}'\n{TEXT}", where="space.toml")
    assert with_measured_objective(space, [TOKENS, SAMPLES], workload=WORKLOAD) == (space, "")


def test_launches_measured_in_samples_are_learned_from() -> None:
    trials = [trial_of(knob, samples_per_second=100.0 * knob + number) for knob in (1, 2) for number in range(3)]
    best = best_known(SPACE, workload=WORKLOAD, current={"knob": 1}, trials=trials)
    assert best is not None
    assert (best.config, best.gain) == ({"knob": 2}, pytest.approx(2.0, rel=0.05))
    study = Study.of(SPACE, workload=WORKLOAD, current={"knob": 1}, trials=trials)
    assert study.posterior.space.objective == "samples_per_second"
    case = DecisionContext(space=SPACE, workload=WORKLOAD, current={"knob": 1}, trials=trials).migrated()
    assert case.space.objective == "samples_per_second"
    assert case.lines == ("samples_per_second is compared, as no launch of this workload counted tokens",)
