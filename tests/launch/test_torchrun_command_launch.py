from __future__ import annotations

import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.launcher.api import _get_entrypoint_name
from torch.distributed.run import config_from_args, parse_args

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import TorchrunLaunch
from torchx_cubicml.launch.torchrun_command import RECORDER
from torchx_cubicml.recorder.process.run_program import parse_program

ARGUMENTS = st.lists(st.text(min_size=1).filter(lambda text: "\0" not in text), max_size=5)


def parse(line: str, **env: str) -> TorchrunLaunch:
    return TorchrunLaunch.parse(shlex.split(line), env=env)


def seen(args: list[str]) -> list[str]:
    """Return what torchrun itself starts a worker with, after the interpreter's own options."""
    _, _, command = config_from_args(parse_args(args))
    return [str(word) for word in command if word != "-u"]


def test_a_command_says_what_it_starts() -> None:
    launch = parse("--nnodes 2 --nproc_per_node 4 train.py --cost '$$5' ${local_rank}", A="b").launch
    assert (launch.program, launch.is_module) == ("train.py", False)
    assert launch.script_args == ("--cost", "$5", "${local_rank}")
    assert (launch.nnodes, launch.nproc_per_node, launch.world_size) == (2, 4, 8)
    assert (launch.env, launch.why_not_rewritten) == ({"A": "b"}, "")
    assert launch.can_have_second_attempt


@pytest.mark.parametrize(
    ("line", "env", "size"),
    [
        ("t.py", {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3"}, (2, 3, 6)),
        ("--nproc_per_node 4 t.py", {"PET_NPROC_PER_NODE": "3"}, (1, 4, 4)),
        ("--nproc_per_node auto t.py", {}, (None, None, None)),
        ("--nnodes 1:4 t.py", {"PET_STANDALONE": "0"}, (None, 1, None)),
    ],
    ids=["environment", "typed before environment", "left open", "elastic"],
)
def test_the_size_of_the_job(line: str, env: dict[str, str], size: tuple[int | None, int | None, int | None]) -> None:
    launch = parse(line, **env).launch
    assert (launch.nnodes, launch.nproc_per_node, launch.world_size) == size


@given(arguments=ARGUMENTS)
def test_arguments_pass_through_byte_for_byte(arguments: list[str]) -> None:
    typed = ["--nproc_per_node", "2", "--", "train.py", *arguments]
    command = TorchrunLaunch.parse(typed, env={})
    assert command.wrapped(command.launch.script_args, recorder=RECORDER)[4:] == typed[3:]


@given(arguments=ARGUMENTS, wanted=ARGUMENTS)
def test_a_written_command_is_read_back(arguments: list[str], wanted: list[str]) -> None:
    words = TorchrunLaunch.parse(["--", "train.py", *arguments], env={}).wrapped(wanted, recorder="pkg.other")
    assert words[:3] == ["--", "-mpkg.other", "train.py"]
    assert TorchrunLaunch.parse(["--", *words[2:]], env={}).launch.script_args == tuple(wanted)


@pytest.mark.parametrize(
    "line",
    [
        "t.py --m 1",
        "-m pkg.train --x",
        "-m --nproc-per-node 2 pkg.train",
        "--nproc-per-node=2 -- t.py -- y",
        "t.py -- y",
    ],
)
def test_torchrun_itself_reads_the_wrapped_command_so(line: str) -> None:
    command = parse(line)
    words = seen(command.wrapped(command.launch.script_args, recorder=RECORDER))
    started = words.index(f"-m{RECORDER}")
    program = parse_program(words[started + 1 :])
    launch = command.launch
    assert (program.name, program.is_module, program.arguments) == (
        launch.program,
        launch.is_module,
        launch.script_args,
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("--nproc-per-node 2 t.py -- x", "t.py"),
        ("-m --nproc-per-node=2 pkg.train", "pkg.train"),
        (f"--no-python {sys.executable} -u t.py", "t.py"),
        ("--no-python python t.py", "python"),
    ],
)
def test_torchrun_names_the_program_as_it_does_without_the_recorder(line: str, name: str) -> None:
    command = parse(line)
    recorded = command.wrapped(command.launch.script_args, recorder=RECORDER)
    for words in (shlex.split(line), recorded):
        _, entrypoint, arguments = config_from_args(parse_args(words))
        assert _get_entrypoint_name(entrypoint, arguments) == name


@pytest.mark.parametrize(
    ("line", "env", "python"),
    [
        ("t.py", {}, ("ours",)),
        ("t.py", {"PYTHON_EXEC": "theirs"}, ("theirs",)),
        ("--no-python python3 -u t.py", {"PYTHON_EXEC": "theirs"}, ("python3", "-u")),
    ],
    ids=["that of torchrun", "named in the environment", "named in the command"],
)
def test_the_python_of_the_program(line: str, env: dict[str, str], python: tuple[str, ...]) -> None:
    assert parse(line, **env).python(torchrun_python=("ours",)) == python


@pytest.mark.parametrize(
    ("line", "env", "resizable", "reason"),
    [
        ("t.py", {}, {"nproc_per_node"}, ""),
        ("--nnodes 2 t.py", {}, set(), ""),
        ("--nproc_per_node auto t.py", {}, set(), "the number of processes per node (auto)"),
        ("t.py", {"PET_NNODES": "1:2"}, set(), "the number of nodes (1:2)"),
    ],
    ids=["one node", "several nodes", "left open", "elastic"],
)
def test_only_the_processes_of_one_node_can_change(
    line: str, env: dict[str, str], resizable: set[str], reason: str
) -> None:
    launch = parse(line, **env).launch
    assert launch.resizable == resizable
    assert launch.why_not_rewritten == (f"{reason} is known only when the job starts" if reason else "")


@pytest.mark.parametrize("env", [{}, {"PET_TEE": "3", "PET_STANDALONE": "1"}], ids=["typed", "environment"])
@pytest.mark.parametrize(
    ("line", "wrapped", "python"),
    [
        ("--tee 3 t.py x", "--tee 3 -- -mrec t.py x", "ours"),
        ("-m p.q x", "-- -mrec -m p.q x", "ours"),
        ("--no-python python3 -u t.py x", "--no-python python3 -u -mrec t.py x", "python3 -u"),
        ("--no-python python3 -m p.q x", "--no-python python3 -mrec -m p.q x", "python3"),
    ],
    ids=["script", "module", "named Python", "module of a named Python"],
)
def test_options_of_the_environment_are_not_repeated(line: str, wrapped: str, python: str, env: dict[str, str]) -> None:
    command = parse(line, **env)
    assert command.wrapped(("x",), recorder="rec") == wrapped.split()
    assert command.python(torchrun_python=("ours",)) == tuple(python.split())


@pytest.mark.parametrize("value", ["", "0", " 0 "])
def test_a_switch_of_the_environment_may_be_off(value: str) -> None:
    assert not parse("t.py", PET_MODULE=value, PET_RUN_PATH=value).launch.is_module


def test_a_switch_of_the_environment_may_be_on() -> None:
    assert parse("p.q", PET_MODULE=" 1").launch.is_module
    with pytest.raises(LaunchError, match="--run-path"):
        parse("t.py", PET_RUN_PATH="1")


def test_a_changed_value_is_escaped_for_torchrun() -> None:
    words = parse("t.py --x '$$5' --y ${rank}").wrapped(["--x", "$6", "--y", "${rank}"], recorder="rec")
    assert words[-4:] == ["--x", "$$6", "--y", "${rank}"]
