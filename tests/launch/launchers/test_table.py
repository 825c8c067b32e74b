from __future__ import annotations

import argparse
import shlex
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launchers import accelerate_command, deepspeed_command
from torchx_cubicml.launch.launchers.command_launch import CommandLaunch, is_command, python_of_script
from torchx_cubicml.launch.launchers.table import parse_any_command
from torchx_cubicml.launch.torchrun_command import RECORDER

if TYPE_CHECKING:
    from pathlib import Path

STANDARD = "--deepspeed_multinode_launcher standard"
ELASTIC = "accelerate launch --multi_gpu --num_processes 2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "two.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 1\n")
    (tmp_path / "single.yaml").write_text("distributed_type: 'NO'\nnum_processes: 4\n")
    (tmp_path / "cpus.yaml").write_text("distributed_type: MULTI_CPU\nnum_processes: 4\n")
    (tmp_path / "tpu.yaml").write_text("distributed_type: XLA\nnum_processes: 8\n")
    (tmp_path / "cloud.yaml").write_text("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n")
    (tmp_path / "nodes.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\nnum_machines: 2\n")
    (tmp_path / "mpi.yaml").write_text("distributed_type: MULTI_CPU\nmpirun_config: {mpirun_hostfile: hosts}\n")
    return tmp_path


def options_of(parser: argparse.ArgumentParser) -> tuple[set[str], set[str]]:
    """Return the long options of a parser: with a value, and without."""
    takes_value: dict[bool, set[str]] = {True: set(), False: set()}
    for action in parser._actions:
        long = {text[2:].replace("-", "_") for text in action.option_strings if text.startswith("--")}
        takes_value[action.nargs != 0] |= long
    return takes_value[True], takes_value[False]


def command(line: str) -> CommandLaunch:
    return CommandLaunch.parse(shlex.split(line), env={})


@pytest.mark.parametrize(
    ("line", "launcher", "program", "args", "size"),
    [
        (f"{ELASTIC} t.py --lr 1", "accelerate", "t.py", ["--lr", "1"], (1, 2)),
        ("accelerate-launch --use-fsdp --num-processes=4 t.py", "accelerate", "t.py", [], (1, 4)),
        ("python -u -m accelerate.commands.launch --config_file two.yaml t.py", "accelerate", "t.py", [], (1, 2)),
        ("accelerate launch --config_file single.yaml t.py", "accelerate", "t.py", [], (1, 1)),
        ("accelerate launch --config_file cpus.yaml t.py", "accelerate", "t.py", [], (1, 1)),
        ("accelerate launch --cpu --config_file tpu.yaml t.py", "accelerate", "t.py", [], (1, 1)),
        (
            "accelerate launch --use_fsdp --config_file cloud.yaml --num_processes 2 t.py",
            "accelerate",
            "t.py",
            [],
            (1, 2),
        ),
        (f"accelerate launch --config_file nodes.yaml {STANDARD} t.py", "accelerate", "t.py", [], (2, 4)),
        ("accelerate launch --config_file mpi.yaml t.py", "accelerate", "t.py", [], (None, None)),
        ("accelerate launch --config_file absent.yaml t.py", "accelerate", "t.py", [], (None, None)),
        ("accelerate launch --multi_gpu --num_processes 8 --num_machines 2 t.py", "accelerate", "t.py", [], (2, 4)),
        ("accelerate launch --cpu --num_processes 2 t.py", "accelerate", "t.py", [], (1, 1)),
        ("accelerate launch t.py", "accelerate", "t.py", [], (None, None)),
        ("accelerate launch --num_processes 1 -m pkg.train -- x", "accelerate", "-m pkg.train", ["x"], (1, 1)),
        (f"{ELASTIC} -- t.py -- x", "accelerate", "t.py", ["--", "x"], (1, 2)),
        ("deepspeed --num_gpus 2 t.py --deepspeed ds.json", "deepspeed", "t.py", ["--deepspeed", "ds.json"], (1, 2)),
        ("deepspeed --module --num_gpus=2 pkg.train", "deepspeed", "-m pkg.train", [], (1, 2)),
        ("deepspeed t.py", "deepspeed", "t.py", [], (None, None)),
        ("deepspeed --hostfile hosts --num_gpus 2 t.py", "deepspeed", "t.py", [], (None, None)),
        ("mpirun --oversubscribe -np 2 -x A=1 --mca a b python -u t.py x", "mpirun", "t.py", ["x"], (1, 2)),
        ("mpiexec -n 4 python -m pkg.train", "mpirun", "-m pkg.train", [], (1, 4)),
        ("mpirun -np 4 --hostfile hosts python t.py", "mpirun", "t.py", [], (None, None)),
        ("srun -N1 -n4 --gres=gpu:1 python t.py", "srun", "t.py", [], (1, 4)),
        ("srun -N 2 --ntasks-per-node=4 --exclusive python t.py -n 3", "srun", "t.py", ["-n", "3"], (2, 4)),
        ("srun python t.py", "srun", "t.py", [], (None, None)),
        ("srun -N 2 torchrun --nnodes 2 --nproc_per_node 8 t.py", "srun", "t.py", [], (2, 8)),
        ("python t.py --lr 1", "", "t.py", ["--lr", "1"], (None, 1)),
        ("torchrun --nproc_per_node 2 t.py", "", "t.py", [], (1, 2)),
    ],
)
def test_commands_are_taken_apart(
    line: str, launcher: str, program: str, args: list[str], size: tuple[int | None, int | None]
) -> None:
    words = shlex.split(line)
    parts = parse_any_command(tuple(words))
    assert (parts.launcher, f"{'-m ' if parts.is_module else ''}{parts.program}") == (launcher, program)
    assert words[parts.args_start :] == args
    assert (parts.nnodes, parts.nproc_per_node) == size
    assert bool(parts.left_open) == (bool(launcher) and None in size)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("accelerate launch --frobnicate t.py", "unknown option --frobnicate of accelerate launch"),
        ("accelerate launch --num_proc 2 t.py", "unknown option --num_proc "),
        ("accelerate launch --num_processes", "has no value"),
        ("accelerate launch --cpu", "names no script"),
        ("accelerate launch --no_python ./t.sh", "starts a program that is no Python script"),
        ("accelerate launch --tpu t.py", "in the launcher's own process"),
        ("accelerate launch --config_file tpu.yaml t.py", "config file runs the script in the launcher's own process"),
        ("accelerate launch --config_file cloud.yaml --cpu t.py", "config file starts the script at SageMaker"),
        ("accelerate launch --config_file nodes.yaml t.py", "starts another launcher, deepspeed, on several machines"),
        ("accelerate launch --use_deepspeed --num_machines 2 t.py", "another launcher, deepspeed, on several machines"),
        ("accelerate test", "accelerate is neither"),
        (f"{ELASTIC} -- -m{RECORDER} t.py", "already starts the recorder"),
        ("deepspeed --autotuning run t.py", "makes launches of its own"),
        ("deepspeed --num-gpus 2 t.py", "unknown option --num-gpus of deepspeed"),
        ("mpirun -np 1 python a.py : -np 1 python b.py", "several programs"),
        ("mpirun -np 2 ./train.sh", "train.sh is neither"),
        ("srun -n 2 accelerate launch --cpu t.py", "starts another launcher, accelerate"),
        ("srun --ntask 2 python t.py", "unknown option --ntask of srun"),
    ],
)
def test_what_cannot_be_recorded_is_said(line: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        parse_any_command(tuple(shlex.split(line)))


@pytest.mark.parametrize(
    ("typed", "recorded"),
    [
        (f"{ELASTIC} t.py --lr 1", f"{ELASTIC} -- -m{RECORDER} t.py --lr 2"),
        (f"{ELASTIC} -m pkg.train -- --lr 1", f"{ELASTIC} -- -m{RECORDER} -m pkg.train --lr 2"),
        ("deepspeed --num_gpus 2 t.py --lr 1", f"deepspeed --num_gpus 2 --module {RECORDER} t.py --lr 2"),
        ("deepspeed --module --num_gpus 2 p.t --lr 1", f"deepspeed --num_gpus 2 --module {RECORDER} -m p.t --lr 2"),
        ("mpirun -np 2 python -u t.py --lr 1", f"mpirun -np 2 python -u -m{RECORDER} t.py --lr 2"),
        ("srun -n2 python -m pkg.train --lr 1", f"srun -n2 python -m{RECORDER} -m pkg.train --lr 2"),
        ("python t.py --lr 1", f"python -m{RECORDER} t.py --lr 2"),
        (
            "python -m torch.distributed.run --nproc_per_node 2 t.py --lr 1",
            f"python -m torch.distributed.run --nproc_per_node 2 -- -m{RECORDER} t.py --lr 2",
        ),
    ],
)
def test_the_recorder_stands_in_front_of_the_program(typed: str, recorded: str) -> None:
    parsed = command(typed)
    assert parsed.launch.script_args == ("--lr", "1")
    assert " ".join(parsed.wrapped(["--lr", "2"], recorder=RECORDER)) == recorded


@pytest.mark.parametrize(
    ("typed", "resized"),
    [
        (f"{ELASTIC} t.py", "accelerate launch --multi_gpu --num_processes 4"),
        ("accelerate launch --num_processes=2 --use_fsdp t.py", "accelerate launch --num_processes=4 --use_fsdp"),
        ("deepspeed --num_gpus 2 t.py", "deepspeed --num_gpus 4"),
        ("mpirun -np 2 python t.py", "mpirun -np 4 python"),
        ("srun -N1 -n2 python t.py", "srun -N1 -n4 python"),
    ],
)
def test_the_launchers_own_size_is_written(typed: str, resized: str) -> None:
    parsed = command(typed)
    launch = parsed.launch
    assert (launch.world_size, launch.resizable) == (2, {"nproc_per_node"})
    other = type(launch)(program="t.py", nproc_per_node=4, launcher_args=launch.launcher_args)
    made = parsed.with_launcher_of(other)
    assert " ".join(made.wrapped([], recorder=RECORDER)).startswith(resized)
    assert parsed.with_launcher_of(launch) == parsed


@pytest.mark.parametrize("line", ["srun -n 8 python t.py", "srun -N 3 -n 8 python t.py"])
def test_slurm_chooses_the_nodes_that_are_not_typed(line: str) -> None:
    launch = command(line).launch
    assert (launch.world_size, launch.nnodes, launch.nproc_per_node) == (8, None, None)
    assert (launch.resizable, launch.why_not_rewritten) == (frozenset(), "")


def test_a_hostfile_that_is_not_named_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("deepspeed --num_gpus 2 t.py").launch.world_size == 2
    (folder / "hostfile").write_text("one slots=8\ntwo slots=8\n")
    monkeypatch.setattr(deepspeed_command, "HOSTFILE", folder / "hostfile")
    launch = command("deepspeed --num_gpus 2 t.py").launch
    assert launch.world_size is None
    assert launch.why_not_rewritten.startswith("the nodes and the number of processes is known only")


@pytest.mark.parametrize(
    ("line", "second"),
    [
        (
            "python -u -m accelerate.commands.launch --multi_gpu --num_processes 2 t.py 1",
            "python -u -m torchx_cubicml.recorder.launcher 9 -m accelerate.commands.launch --multi_gpu "
            "--num_processes 2 -- -mREC t.py 1 -m accelerate.commands.launch --multi_gpu --num_processes 2 "
            "-- -mREC t.py",
        ),
        (
            "python -m torch.distributed.run --nproc_per_node 2 t.py 1",
            "python -m torchx_cubicml.recorder.torchrun 6 --nproc_per_node 2 -- -mREC t.py 1 "
            "--nproc_per_node 2 -- -mREC t.py",
        ),
    ],
)
def test_a_launcher_in_python_can_be_run_again(line: str, second: str) -> None:
    parsed = command(line)
    assert parsed.launch.can_have_second_attempt
    first, typed = (parsed.wrapped(args, recorder="REC") for args in (["2"], ["1"]))
    assert " ".join(parsed.with_second_attempt(first, typed)) == f"{second} 2"


def test_a_launcher_script_is_run_again_by_its_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "deepspeed").write_text("#!/bin/sh\n'''exec' /a/long/path/python \"$0\"\n' '''\nimport sys\n")
    (folder / "deepspeed").chmod(0o755)
    (folder / "python").touch()
    monkeypatch.setenv("PATH", str(folder))
    parsed = command("deepspeed --num_gpus 2 t.py")
    assert parsed.launch.can_have_second_attempt
    words = parsed.with_second_attempt(parsed.wrapped(["2"], recorder="REC"), parsed.wrapped([], recorder="REC"))
    script = str(folder / "deepspeed")
    assert words[:5] == [str(folder / "python"), "-P", "-m", "torchx_cubicml.recorder.launcher", "6"]
    assert words[5:11] == [script, "--num_gpus", "2", "--module", "REC", "t.py"]
    assert words[11:] == [script, "--num_gpus", "2", "--module", "REC", "t.py", "2"]
    (folder / "deepspeed").write_text('#!/bin/sh\nexec python -m deepspeed "$@"\n')
    assert not command("deepspeed --num_gpus 2 t.py").launch.can_have_second_attempt, "no Python"


@pytest.mark.parametrize("line", ["python t.py", "mpirun -np 2 python t.py", "srun -N 1 -n 2 python t.py"])
def test_other_launchers_are_not_run_again(line: str) -> None:
    assert not command(line).launch.can_have_second_attempt


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed: make test-integrations")
def test_the_options_of_accelerate_are_all_known() -> None:
    from accelerate.commands.launch import launch_command_parser

    table = accelerate_command.OPTIONS
    assert (table.with_value, table.without_value) == options_of(launch_command_parser())


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed: make test-releases")
def test_the_options_of_deepspeed_are_all_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.launcher import runner

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda parser, args: parser)
    table = deepspeed_command.OPTIONS
    assert (table.with_value, table.without_value) == options_of(runner.parse_args([]))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("accelerate launch t.py", "for which accelerate counts the devices, is known only when the job starts"),
        ("accelerate launch --multi_gpu --num_processes 8 --num_machines 2 t.py", "would choose for itself"),
        ("srun -N 2 -n 8 python t.py", ""),
        ("python t.py", ""),
    ],
)
def test_the_reason_against_a_change_is_told(line: str, reason: str) -> None:
    found = command(line).launch.why_not_rewritten
    assert found.endswith(reason)
    assert bool(found) == bool(reason)


def test_the_default_config_of_accelerate_counts(folder: Path) -> None:
    (folder / "hf" / "accelerate").mkdir(parents=True)
    (folder / "hf" / "accelerate" / "default_config.yaml").write_text((folder / "two.yaml").read_text())
    assert command("accelerate launch t.py").launch.world_size == 2
    assert command("accelerate launch --cpu t.py").launch.world_size == 1


def test_a_command_of_each_rank_counts_them_and_changes_nothing() -> None:
    ranks = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    for line, size in (("python t.py", 4), ("accelerate launch --cpu t.py", 4), (f"{ELASTIC} t.py", 2)):
        parsed = CommandLaunch.parse(line.split(), env=ranks)
        assert parsed.launch.world_size == size
        assert (parsed.launch.why_not_rewritten == "each of 4 ranks would choose for itself") == (size == 4)
        assert parsed.starts_all == (size == 2)
    assert command("python t.py").starts_all


def test_variables_of_torchrun_are_left_to_torchrun() -> None:
    words = ["python", "-m", "torch.distributed.run", "t.py"]
    with pytest.raises(LaunchError, match="PET_NNODES sets an option of torchrun"):
        CommandLaunch.parse(words, env={"PET_NNODES": "2"})


def test_a_script_behind_two_hyphens_stays_torchruns() -> None:
    assert not is_command(["--", "train.py"])
    assert not is_command(["--nproc_per_node", "2", "--", "python"])
    assert is_command(["--", "python", "train.py"])
    assert is_command(["--", "no-name-of-a-file" * 20])


def test_the_python_of_a_script_is_found(folder: Path) -> None:
    script, python = folder / "accelerate", folder / "python"
    for path, text in ((script, "#!/usr/bin/env python3\n"), (python, "")):
        path.write_text(text)
        path.chmod(0o755)
    assert python_of_script(str(script)).endswith("python3")
    script.write_text("#!/bin/sh\n'''exec' /a/long/path/python \"$0\"\n")
    assert python_of_script(str(script)) == str(python)
    python.unlink()
    with pytest.raises(LaunchError, match=r"the Python of .* is not known"):
        python_of_script(str(script))
    with pytest.raises(LaunchError, match="there is no command nowhere"):
        python_of_script("nowhere")
