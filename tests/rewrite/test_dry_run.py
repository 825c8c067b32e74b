"""What a dry run prints besides, and that it does no more than the launch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.rewriter import Options, rewrite_component
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store import TrialStore

SPACE = """
[workload]
n_layers = { flag = "--n_layer" }
d_model = { flag = "--width" }
seq_len = 512

[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
flag = "--batch_size"
"""
DDP = shlex.split("dist.ddp -j 1x2 --script train.py -- --n_layer 4 --width 256 --batch_size 2")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Return options of a store with launches of each batch size; 8 is the fastest by far. The process is a dry run."""
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    monkeypatch.setattr(sys, "argv", ["torchx", "run", "--dryrun", "-s", "local_cwd", "cubicml", *DDP])
    monkeypatch.setitem(sys.modules, "torchx.cli.cmd_run", sys)
    return Options(space=str(path), store=str(tmp_path / "store"))


def fill(options: Options) -> None:
    component = ComponentLaunch.parse(DDP[0], DDP[1:])
    workload, config = read_config(component.launch, load_space(options.space))
    for size in (1, 2, 4, 8):
        for _ in range(2):
            TrialStore(options.store).add(
                Trial.completed(
                    workload=workload, config={**config, "micro_batch_size": size}, tokens_per_second=1e4 * size**0.5
                )
            )


def test_a_dry_run_shows_the_command_of_the_job_without_the_recorder(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    Path(options.space).write_text(SPACE + "changes_training = true\n")
    fill(options)
    (role,) = rewrite_component(DDP, options).roles
    said = capsys.readouterr().err
    _, *lines = said[said.index("torchx-cubicml: the job runs this command") :].splitlines()
    assert max(map(len, lines)) <= 60
    words = shlex.split("".join(line.removesuffix("\\") for line in lines))
    assert words[0] == "torchrun"
    assert words[words.index("train.py") :] == shlex.split("train.py --n_layer 4 --width 256 --batch_size 8")
    assert "-mtorchx_cubicml.recorder train.py --n_layer 4 --width 256 --batch_size 8" in role.args[1]


def test_a_dry_run_without_a_space_file_shows_the_command(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite_component(DDP, Options(store=options.store))
    said = capsys.readouterr().err
    assert "torchx-cubicml: the job runs this command" in said
    assert said.rstrip().endswith("train.py --n_layer 4 --width 256 --batch_size 2")


def test_a_dry_run_says_what_the_launch_says_and_loads_no_more(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(options.space).write_text(SPACE + "changes_training = true\n")
    fill(options)
    rewrite_component(DDP, options)  # its suggestion is cached
    capsys.readouterr()
    for name in [name for name in sys.modules if name.startswith("torchx_cubicml.advisor")]:
        monkeypatch.delitem(sys.modules, name)
    rewrite_component(DDP, options)
    assert not any(name.startswith("torchx_cubicml.advisor") for name in sys.modules)
    shown, _, command = capsys.readouterr().err.partition("torchx-cubicml: the job runs this command")
    assert "arguments rewritten" in shown
    assert command
    monkeypatch.setattr(sys, "argv", [word for word in sys.argv if word != "--dryrun"])
    rewrite_component(DDP, options)
    assert capsys.readouterr().err == shown


def test_a_scheduler_that_takes_no_command_gets_the_app_as_typed(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    component = shlex.split("utils.python --script train.py -- --batch_size 2")
    monkeypatch.setattr(sys, "argv", ["torchx", "run", "-s", "aws_sagemaker", "cubicml", *component])
    (role,) = rewrite_component(component, options).roles
    assert (role.entrypoint, role.args) == ("python", ["train.py", "--batch_size", "2"])
    assert "aws_sagemaker starts the script by a launcher of its own" in capsys.readouterr().err
