"""What of a record may enter a user's command: numbers, and texts of the user's own files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.repeat import repeated_launch
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.toml import load_space

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.space import SearchSpace

SPACE = """\
[parameters.kernel]
choices = ["flash", "math"]
flag = "--kernel"
[parameters.workers]
choices = [1, 2]
flag = "--workers"
"""
COMMAND = Launch(program="train.py", script_args=("--kernel", "math", "--workers", "1"), world_size=1)


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    (tmp_path / "space.toml").write_text(SPACE)
    return load_space(str(tmp_path / "space.toml"))


def recorded(**config: object) -> Trial:
    return Trial(trial_id="t", workload={"program": "train.py", "world_size": 1}, config=config, state=State.COMPLETED)  # type: ignore[arg-type]


def test_values_are_written_at_their_places(space: SearchSpace) -> None:
    found = repeated_launch(COMMAND, space, recorded(kernel="flash", workers=2), digest_keys=())
    assert found.launch.script_args == ("--kernel", "flash", "--workers", "2")


def test_a_number_outside_the_choices_was_the_own_config_of_somebody(space: SearchSpace) -> None:
    found = repeated_launch(COMMAND, space, recorded(kernel="math", workers=7), digest_keys=())
    assert found.launch.script_args == ("--kernel", "math", "--workers", "7")


@pytest.mark.parametrize("text", ["; rm -rf ~", "$(reboot)", "--api_key=x", "\x1b[2J", "flash2"])
def test_a_text_that_the_space_file_does_not_hold_is_refused(space: SearchSpace, text: str) -> None:
    with pytest.raises(LaunchError, match="is no value of the space file; it has flash, math"):
        repeated_launch(COMMAND, space, recorded(kernel=text, workers=1), digest_keys=())


def test_what_the_record_and_the_space_file_lack_is_told(space: SearchSpace) -> None:
    found = repeated_launch(COMMAND, space, recorded(workers=2, fused=True), digest_keys=())
    assert found.differences == ("fused = true of the record has no place in the space file, so it is not set",)
    assert "the record holds no kernel: your own stays" in found.unknown
    assert any("holds none that can be compared" in text for text in found.unknown)
