from __future__ import annotations

import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.distributed.run import parse_args

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.torchrun_command import (
    RECORDER,
    TORCHRUN_SHORT,
    TORCHRUN_WITH_VALUE,
    TORCHRUN_WITHOUT_VALUE,
    LaunchCommand,
    parse_command,
    with_option,
)


@pytest.mark.parametrize(
    ("line", "program", "args", "size"),
    [
        ("torchrun train.py --lr 1", "train.py", ["--lr", "1"], (1, 1)),
        ("torchrun --nnodes 2 --nproc_per_node 8 --role '' t.py", "t.py", [], (2, 8)),
        ("/opt/venv/bin/torchrun --nnodes=2:2 --nproc-per-node=8 t.py x", "t.py", ["x"], (2, 8)),
        ("torchrun --standalone --nproc 4 -t 3 t.py", "t.py", [], (1, 4)),
        ("torchrun --nproc_per_node 2 -m pkg.train --m 1", "-m pkg.train", ["--m", "1"], (1, 2)),
        ("torchrun -m --nproc_per_node 2 pkg.train", "-m pkg.train", [], (1, 2)),
        ("torchrun --nproc_per_node 2 -- t.py -- y", "t.py", ["--", "y"], (1, 2)),
        ("torchrun t.py -- y", "t.py", ["y"], (1, 1)),
        ("torchrun --nnodes 1:4 --nproc_per_node 2 t.py", "t.py", [], (None, 2)),
        ("torchrun --nproc_per_node gpu t.py", "t.py", [], (1, None)),
        ("torchrun --nnodes $N t.py", "t.py", [], (None, 1)),
        ("torchrun --nproc_per_node 2 --no-python python3 -u t.py --x", "t.py", ["--x"], (1, 2)),
        ("python3.11 -u -X dev -Wignore t.py -- y", "t.py", ["--", "y"], (None, 1)),
        ("python -m pkg.train --lr 1", "-m pkg.train", ["--lr", "1"], (None, 1)),
        ("python -u -m torch.distributed.run --nproc_per_node 2 t.py 1", "t.py", ["1"], (1, 2)),
    ],
)
def test_commands_are_taken_apart(
    line: str, program: str, args: list[str], size: tuple[int | None, int | None]
) -> None:
    words = shlex.split(line)
    command = parse_command(words)
    assert f"{'-m ' if command.is_module else ''}{command.program}" == program
    assert words[command.args_start :] == args
    assert (command.nnodes, command.nproc_per_node) == size
    assert bool(command.left_open) == (None in size and command.is_torchrun)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("echo hello", "echo is neither torchrun nor python"),
        ("", "an empty command"),
        ("accelerate launch t.py", "accelerate is neither"),
        ("torchrun --nnodes 1", "names no script"),
        ("python", "names no script"),
        ("python -c 'print(1)'", "python option -c"),
        ("torchrun --frobnicate 3 t.py", "unknown torchrun option --frobnicate"),
        ("torchrun --rdzv c10d t.py", "unknown torchrun option --rdzv"),
        ("torchrun --run-path t.py", "--run-path"),
        ("torchrun --no-python ./train.sh", "train.sh is neither"),
        ("torchrun -m torchx_cubicml.recorder -- t.py", "already starts the recorder"),
        ("torchrun --nnodes 1 -- -mtorchx_cubicml.recorder t.py", "already starts the recorder"),
        ("torchrun --no-python python -mtorchx_cubicml.recorder t.py", "already starts the recorder"),
    ],
)
def test_other_commands_are_refused_with_the_reason(line: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        parse_command(shlex.split(line))


def test_options_are_those_of_the_torchrun_installed() -> None:
    from torch.distributed.run import get_args_parser

    with_value, without_value, short = set(), set(), {}
    for action in get_args_parser()._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        for name in names:
            (with_value if action.nargs is None else without_value).add(name[2:].replace("-", "_"))
        short |= {name[1:]: names[0][2:].replace("-", "_") for name in action.option_strings if name[1] != "-"}
    assert with_value <= TORCHRUN_WITH_VALUE
    assert without_value <= TORCHRUN_WITHOUT_VALUE
    assert short == TORCHRUN_SHORT


def torchrun(program: str, head_stop: int, args_start: int, **more: object) -> LaunchCommand:
    """Return the command of a script that torchrun starts with a Python of its own choice."""
    parts = {"is_module": False, "nnodes": 1, "is_torchrun": True, "picks_python": True, **more}
    return LaunchCommand(program=program, head_stop=head_stop, args_start=args_start, **parts)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("torchrun t.py", torchrun("t.py", 1, 2)),
        ("torchrun -- t.py x", torchrun("t.py", 1, 3)),
        ("torchrun t.py -- x", torchrun("t.py", 1, 3)),
        ("torchrun -- t.py -- x", torchrun("t.py", 1, 3)),
        ("torchrun t.py x --", torchrun("t.py", 1, 2)),
        ("torchrun --tee=3 -r 2 --standalone t.py", torchrun("t.py", 5, 6)),
        ("torchrun -m p.q x", torchrun("p.q", 2, 3, is_module=True, module_options=(1,))),
        ("torchrun --module -- p.q", torchrun("p.q", 2, 4, is_module=True, module_options=(1,))),
        (
            "torchrun --no_python python -O -m p.q x",
            torchrun("p.q", 4, 6, is_module=True, picks_python=False, python=slice(2, 4)),
        ),
        ("torchrun --no-python -- python t.py", torchrun("t.py", 4, 5, picks_python=False, python=slice(3, 4))),
        ("python3 -E -m torch.distributed.run t.py x", torchrun("t.py", 4, 5, python=slice(0, 2), options_start=4)),
        (
            "python3 -m torch.distributed.run --nnodes 1:2 --nproc-per-node auto -- t.py",
            torchrun(
                "t.py",
                7,
                9,
                python=slice(0, 1),
                options_start=3,
                nnodes=None,
                nproc_per_node=None,
                left_open="the number of nodes (1:2) and the number of processes per node (auto)",
            ),
        ),
        (
            "python -W ignore -X dev -OWerror -uX a t.py -m",
            LaunchCommand(program="t.py", is_module=False, head_stop=8, args_start=9, python=slice(0, 8)),
        ),
        (
            "python -m torch.distributed.launch t.py",
            LaunchCommand(
                program="torch.distributed.launch", is_module=True, head_stop=1, args_start=3, python=slice(0, 1)
            ),
        ),
        (
            "python torch.distributed.run t.py",
            LaunchCommand(
                program="torch.distributed.run", is_module=False, head_stop=1, args_start=2, python=slice(0, 1)
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_part_has_its_place(line: str, command: LaunchCommand) -> None:
    assert parse_command(line.split()) == command


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["torchrun"], "names no script or module"),
        (["torchrun", "--nnodes"], "names no script or module"),
        (["torchrun", "--nnodes=2", "--"], "names no script or module"),
        (["torchrun", ""], "names no script or module"),
        (["torchrun", "--", "-x"], "names no script or module"),
        (["python", "-m"], "names no script or module"),
        (["python", "-W"], "names no script or module"),
        (["torchrun", "-q", "t.py"], "unknown torchrun option -q$"),
        (["torchrun", "--no", "t.py"], "unknown torchrun option --no$"),
        (["torchrun", "--no-python"], "an empty command is neither"),
        (["python", RECORDER], "already starts the recorder"),
        (["python", "-uc", "1"], "python option -uc leaves"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_without_a_program_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        parse_command(words)


OPTIONS = (
    ["--nnodes", "2"],
    ["--nnodes=2"],
    ["--nproc_per_node", "2"],
    ["--nproc-per-node=2"],
    ["--max_rest", "2"],
    ["--standalone"],
    ["-t", "3"],
    ["--rdzv-conf", "a=1,b=2"],
    ["--role=-x"],
)


@given(st.lists(st.sampled_from(OPTIONS), max_size=4), st.booleans(), st.sampled_from(["nnodes", "nproc_per_node"]))
def test_torchrun_reads_one_other_option(groups: list[list[str]], ended: bool, option: str) -> None:
    words = [word for group in groups for word in group]
    assume(sum(group[0].replace("-", "_").startswith(f"__{option}") for group in groups) < 2)
    rest = [*(["--"] if ended else []), "t.py", "--nnodes", "9"]
    changed = with_option([*words, *rest], len(words), option, "7")
    assert vars(parse_args(changed)) == {**vars(parse_args([*words, *rest])), option: "7"}
    assert changed[-len(rest) :] == tuple(rest)


def test_words_after_the_options_are_no_options() -> None:
    assert with_option(["--tee", "3", "--nnodes", "2"], 2, "nnodes", "7") == (
        "--nnodes=7",
        "--tee",
        "3",
        "--nnodes",
        "2",
    )
    assert with_option(["--", "--nnodes", "2"], 3, "nnodes", "7") == ("--nnodes=7", "--", "--nnodes", "2")
    assert with_option(["t.py", "--nnodes", "2"], 3, "nnodes", "7") == ("--nnodes=7", "t.py", "--nnodes", "2")
