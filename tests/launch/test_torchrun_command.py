from __future__ import annotations

import shlex

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.torchrun_command import (
    TORCHRUN_SHORT,
    TORCHRUN_WITH_VALUE,
    TORCHRUN_WITHOUT_VALUE,
    parse_command,
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
