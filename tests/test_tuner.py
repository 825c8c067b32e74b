from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import CubicMLError, LaunchError, SpaceError
from torchx_cubicml.history import config_key
from torchx_cubicml.trial import Origin, State, Trial, new_id
from torchx_cubicml.tuner import Prepared, TuneRequest, next_launch, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.trial import Config

SPACE = """
[workload]
n_layers = { flag = "--n_layer" }

[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
flag = "--batch_size"

[parameters.gradient_accumulation_steps]
derive = "global_batch_size / (micro_batch_size * dp_degree)"
flag = "--accumulate"
"""
SCRIPT_ARGS = ("--n_layer", "2", "--batch_size", "1", "--accumulate", "8")


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    space = tmp_path / "space.toml"
    space.write_text(SPACE)
    return TuneRequest(
        component="dist.ddp",
        component_args=("-j", "1x2", "--script", "train.py", "--", *SCRIPT_ARGS),
        space=str(space),
        store=str(tmp_path / "store"),
        scheduler="local_cwd",
        launches=12,
        repeats=2,
    )


@pytest.fixture
def prepared(request_: TuneRequest) -> Prepared:
    return prepare(request_)


def measured(prepared: Prepared, config: Config, tokens_per_second: float) -> Trial:
    """Throughput grows with the micro batch, which 8 does not survive."""
    done = Trial.completed(workload=prepared.workload, config=config, tokens_per_second=tokens_per_second)
    return replace(done, origin=Origin.TUNE)


def simulate(prepared: Prepared, launches: int) -> list[tuple[str, Trial]]:
    told: list[tuple[str, Trial]] = []
    for number in range(launches):
        trials = [trial for _, trial in told]
        planned = next_launch(prepared, trials, launches_left=launches - number)
        if planned is None:
            break
        purpose, suggestion = planned
        size = suggestion.config["micro_batch_size"]
        if size == 8:
            trial = Trial.infeasible(workload=prepared.workload, config=suggestion.config)
        else:
            trial = measured(prepared, suggestion.config, 1000.0 * int(size) + len(trials))
        told.append((purpose, trial))
    return told


def test_the_command_is_read(prepared: Prepared) -> None:
    assert prepared.current == {"micro_batch_size": 1, "gradient_accumulation_steps": 8}
    assert prepared.workload["n_layers"] == 2
    assert prepared.workload["world_size"] == 2


def test_the_own_config_comes_first_and_the_last_launches_confirm(prepared: Prepared) -> None:
    told = simulate(prepared, 8)
    purposes = [purpose for purpose, _ in told]
    assert purposes[0] == "baseline"
    assert told[0][1].config == prepared.current
    assert purposes.index("confirm") > purposes.index("search")
    counts: dict[str, int] = {}
    for _, trial in told:
        counts[config_key(trial.config)] = counts.get(config_key(trial.config), 0) + 1
    best = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    assert counts[config_key(prepared.current)] == prepared.request.repeats
    assert counts[config_key(best)] == prepared.request.repeats


def test_a_searched_out_space_ends_the_tune_under_budget(prepared: Prepared) -> None:
    told = simulate(prepared, 50)
    assert len(told) == 4 + 2  # each config once, then one more of the own and of the best
    assert sum(trial.state is State.OUT_OF_MEMORY for _, trial in told) == 1


def test_what_others_measured_before_is_not_launched_again(prepared: Prepared) -> None:
    known = [
        measured(prepared, {"micro_batch_size": m, "gradient_accumulation_steps": 8 // m}, 100.0 * m) for m in (1, 2)
    ]
    planned = next_launch(prepared, known, launches_left=10)
    assert planned is not None
    assert planned[1].config["micro_batch_size"] in {4, 8}


def test_launches_under_way_are_not_proposed_again(prepared: Prepared) -> None:
    own = measured(prepared, prepared.current, 100.0)
    pending = [
        replace(
            own,
            trial_id=new_id("t"),
            state=State.PLANNED,
            measurement=None,
            config={"micro_batch_size": m, "gradient_accumulation_steps": 8 // m},
        )
        for m in (2, 4)
    ]
    planned = next_launch(prepared, [own, *pending], launches_left=10)
    assert planned is not None
    assert planned[1].config["micro_batch_size"] == 8


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"launches": 0}, LaunchError, "launches and repeats must be >= 1"),
        ({"space": "missing.toml"}, SpaceError, "missing.toml"),
        ({"component": "dist.nothing"}, LaunchError, "dist.nothing"),
        ({"store": "nosuch://x"}, CubicMLError, "nosuch"),
        ({"component_args": ("-j", "1x2", "--script", "train.py", "--", "--lr", "1")}, LaunchError, "--n_layer"),
    ],
    ids=["no-launches", "no-space-file", "no-component", "unknown-protocol", "flag-not-in-command"],
)
def test_a_bad_request_is_told(
    request_: TuneRequest, changes: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        prepare(replace(request_, **changes))  # type: ignore[arg-type]
