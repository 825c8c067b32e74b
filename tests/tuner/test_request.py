from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.records.test_objective_units import SPACE as PRICED_SPACE
from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.tuner import Budget, TuneRequest, prepare

if TYPE_CHECKING:
    from pathlib import Path


def request(folder: Path, partition: str) -> TuneRequest:
    space = folder / "space.toml"
    space.write_text(PRICED_SPACE)
    return TuneRequest(
        component="dist.ddp",
        component_args=("-j", "1x2", "--script", "train.py"),
        space=str(space),
        store=str(folder / "store"),
        scheduler="slurm",
        scheduler_args=f"partition={partition}",
        budget=Budget(launches=8),
    )


def test_the_users_own_config_needs_a_price(tmp_path: Path) -> None:
    assert prepare(request(tmp_path, "fast")).current == {"partition": "fast"}
    with pytest.raises(SpaceError, match=r"space.toml: prices.partition: no price for 'debug', the value of your comm"):
        prepare(request(tmp_path, "debug"))


def test_a_scheduler_that_takes_no_command_cannot_be_tuned_on(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="aws_sagemaker starts the script by a launcher of its own"):
        prepare(replace(request(tmp_path, "fast"), scheduler="aws_sagemaker", scheduler_args=""))


def test_a_tune_goes_on_with_no_training(tmp_path: Path) -> None:
    asked = request(tmp_path, "fast")
    resumed = replace(asked, component_args=(*asked.component_args, "--", "--resume"))
    with pytest.raises(LaunchError, match="a tune compares trainings that begin anew, but resume goes on"):
        prepare(resumed)
    (tmp_path / "space.toml").write_text(
        f'{PRICED_SPACE}\n[tune]\nargs = {{ "--out" = "{{scratch}}/{{launch_id}}" }}\n'
    )
    assert prepare(replace(resumed, scratch=str(tmp_path / "scratch"))).scratch  # nothing is there to go on with
