from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.advisor import best_known
from torchx_cubicml.advisor.trial_data import with_observed_configs
from torchx_cubicml.records.trial import Trial, Value
from torchx_cubicml.space.toml import parse_space

SPACE = parse_space(
    """
    [workload]
    n_layers = { flag = "--n_layer" }

    [parameters.micro_batch_size]
    choices = [1, 2, 4, 8]
    flag = "--batch_size"

    [parameters.sharding_strategy]
    choices = ["FULL_SHARD", "NO_SHARD"]
    per_layer = "n_layers"
    flag = "--sharding"
    """,
    where="space.toml",
)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2, "n_layers": 2}


def config(batch: int, strategy: str = "FULL_SHARD") -> dict[str, Value]:
    return {"micro_batch_size": batch, "sharding_strategy": (strategy, strategy)}


def asked(batch: int, *, seen: int | None = None, speed: float = 1000.0) -> Trial:
    """A launch under the space file."""
    trial = Trial.completed(workload=WORKLOAD, config=config(batch), tokens_per_second=speed)
    return replace(trial, observed={**config(seen or batch), "n_layers": 2, "device": "cpu"})


def bare(batch: int, *, speed: float = 1000.0, n_layers: int = 2, **observed: Value) -> Trial:
    """A launch before there was a space file: program and size declared, all else seen."""
    trial = Trial.completed(workload={"program": "train.py", "world_size": 2}, config={}, tokens_per_second=speed)
    return replace(trial, observed={**config(batch), "n_layers": n_layers, "device": "cpu", **observed})


def configs(trials: list[Trial]) -> list[dict[str, Value]]:
    return [dict(trial.config) for trial in with_observed_configs(trials, workload=WORKLOAD, space=SPACE)]


def test_observed_values_make_the_config_of_a_bare_launch() -> None:
    assert configs([asked(2), bare(8)]) == [config(2), config(8)]


@pytest.mark.parametrize(
    ("others", "doubtful"),
    [
        ([], bare(8)),
        ([asked(2, seen=1)], bare(8)),
        ([asked(2), asked(4, seen=2)], bare(8)),
        ([asked(2)], bare(8, n_layers=4)),
        ([asked(2)], replace(bare(8), observed={"n_layers": 2, "micro_batch_size": 8})),
        ([asked(2)], replace(bare(8), workload={"program": "other.py", "world_size": 2})),
    ],
    ids=["never shown to be alike", "split over ranks", "split once", "other model", "not seen whole", "other program"],
)
def test_an_ambiguous_launch_has_no_config(others: list[Trial], doubtful: Trial) -> None:
    assert configs([*others, doubtful])[-1] == {}


def test_an_unobserved_parameter_excludes_bare_launches() -> None:
    text = "[parameters.micro_batch_size]\nchoices = [1, 8]\nflag = '-b'\n[parameters.own_knob]\nchoices = [1, 2]\n"
    space = parse_space(f"{text}flag = '--knob'\n", where="space.toml")
    known = replace(asked(1), config={"micro_batch_size": 1, "own_knob": 1}, observed={"micro_batch_size": 1})
    assert [dict(t.config) for t in with_observed_configs([known, bare(8)], workload={}, space=space)][-1] == {}


def test_the_fastest_launch_may_predate_the_space_file() -> None:
    current = config(2)
    trials = [asked(2), asked(2), asked(2), *(bare(8, speed=3000.0) for _ in range(3))]
    best = best_known(SPACE, workload=WORKLOAD, current=current, trials=trials)
    assert best is not None
    assert best.config == config(8)
    assert best.gain == pytest.approx(3.0, rel=0.2)
    alone = best_known(SPACE, workload=WORKLOAD, current=current, trials=trials[:3])
    assert alone is not None
    assert alone.config == current


def test_observed_values_never_enter_a_command() -> None:
    """It must be one of the space's own choices."""
    hostile = replace(bare(8, speed=9e9), observed={**bare(8).observed, "micro_batch_size": "$(id)"})
    best = best_known(SPACE, workload=WORKLOAD, current=config(2), trials=[asked(2), hostile])
    assert best is not None
    assert best.config == config(2)
