"""What a dry run prints besides: where time and memory go, for the config as typed and for the rewritten one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from torchx_cubicml.advisor.breakdown import Basis, Breakdown, Breakdowns
from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite import dry_run
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


def test_a_dry_run_shows_both_configs(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    Path(options.space).write_text(SPACE + "changes_training = true\n")
    fill(options)
    rewrite_component(DDP, options)
    said = capsys.readouterr().err
    assert "arguments rewritten" in said
    lines = said[said.index("torchx-cubicml: where the time of a step goes") :].splitlines()
    assert "estimated from the step of 8 launches" in lines[0]
    assert lines[1].split() == ["your", "config", "rewritten"]
    (memory,) = (line for line in lines if line.startswith("torchx-cubicml: where the memory of a device goes"))
    assert "estimated from the formulas' defaults" in memory  # no launch has recorded its peak


def test_a_dry_run_that_keeps_the_arguments_shows_them_alone(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_component(DDP, options)
    said = capsys.readouterr().err
    assert "keeping your arguments" in said
    assert "your config" in said
    assert not any(line.split()[-1:] == ["rewritten"] for line in said.splitlines())


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


@pytest.mark.parametrize(("error", "is_told"), [(0.05, True), (0.4, True), (0.5, False), (0.99, False), (3.0, False)])
@pytest.mark.parametrize("of", ["time", "memory"])
def test_an_estimate_that_misses_its_launches_is_not_told(error: float, is_told: bool, of: str) -> None:
    parts = Breakdown(seconds={"compute": 1.0}, memory_gib={"parameters": 1.0})
    first, *rest = dry_run.estimate_lines(Breakdowns(of={"a": parts}, **{of: Basis(n_launches=9, error=error)}))
    assert bool(rest) is is_told
    assert is_told or first == (
        f"No estimate of where time and memory go: its median error on launches is {100 * error:.0f} %."
    )


@pytest.mark.parametrize("kind", ["a launch", "only recorded", "no space file"])
def test_nothing_is_estimated_otherwise(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    given = {"mode": "record"} if kind == "only recorded" else {}
    if kind == "a launch":
        monkeypatch.setattr(sys, "argv", ["torchx", "run", "-s", "local_cwd", "cubicml", *DDP])
    space = "" if kind == "no space file" else options.space
    rewrite_component(DDP, Options(space=space, store=options.store, **given))
    assert "where the time" not in capsys.readouterr().err


def test_a_failure_is_one_line_and_the_launch_stands(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("of a defect")

    monkeypatch.setattr(dry_run, "dry_run_lines", fail)
    (role,) = rewrite_component(DDP, options).roles
    assert "--batch_size 2" in " ".join(role.args)
    said = capsys.readouterr().err
    assert "torchx-cubicml: no estimate of where time and memory go: ValueError: of a defect\n" in said


def test_a_dry_run_names_a_hook_that_the_source_has_no_call_for(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(options.space).parent
    monkeypatch.chdir(folder)
    Path(options.space).write_text(f'{SPACE}[parameters.sharding_strategy]\nchoices = ["FULL_SHARD"]\nhook = "fsdp"\n')
    kept = "sharding_strategy kept as typed: its hook cannot set it: the program calls neither"
    for text, is_told in (("import torch\n", True), ("import accelerate\n", False)):
        (folder / "train.py").write_text(text)
        rewrite_component(DDP, options)
        assert (f"torchx-cubicml: {kept}" in capsys.readouterr().err) is is_told


def test_a_scheduler_that_takes_no_command_gets_the_app_as_typed(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    component = shlex.split("utils.python --script train.py -- --batch_size 2")
    monkeypatch.setattr(sys, "argv", ["torchx", "run", "-s", "aws_sagemaker", "cubicml", *component])
    (role,) = rewrite_component(component, options).roles
    assert (role.entrypoint, role.args) == ("python", ["train.py", "--batch_size", "2"])
    assert "aws_sagemaker starts the script by a launcher of its own" in capsys.readouterr().err
