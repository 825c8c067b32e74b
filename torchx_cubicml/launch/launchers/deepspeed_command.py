"""Command line of the ``deepspeed`` launcher (DeepSpeed 0.19): the script behind its options, and the size of the job.

https://github.com/deepspeedai/DeepSpeed/blob/v0.19.0/deepspeed/launcher/runner.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launchers.option_table import OptionTable, option_names
from torchx_cubicml.launch.torchrun_command import LaunchCommand, check_program

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "deepspeed"
MODULES = ("deepspeed.launcher.runner",)

OPTIONS = OptionTable(
    launcher="deepspeed",
    with_value=option_names(
        "hostfile include exclude num_nodes num_gpus num_accelerators master_port master_addr node_rank launcher "
        "launcher_args enable_each_rank_log autotuning bind_core_list ssh_port venv_script log_level"
    ),
    without_value=option_names(
        "help module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid bind_cores_to_rank quiet"
    ),
    short={"h": "help", "H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"},
    hyphens=False,
)
"""Options of ``deepspeed``; a test compares them with DeepSpeed's own parser."""

_SEVERAL_NODES = ("hostfile", "include", "exclude", "num_nodes", "no_ssh", "force_multi")
"""Options with which the command may start processes on other nodes, where our variables do not arrive."""
HOSTFILE = Path("/job/hostfile")
"""Hostfile that DeepSpeed reads where the command names none: ``--num_gpus`` then counts for each host in it."""


def first_option(words: Sequence[str]) -> int | None:
    """Return the index behind the word that starts DeepSpeed's launcher; ``None`` if another program starts."""
    return 1 if words and words[0].rpartition("/")[2] in {"deepspeed", "ds"} else None


def parse(words: Sequence[str], start: int, *, python: slice | None = None) -> LaunchCommand:
    """Parse a command of ``deepspeed``.

    Args:
        words: the command.
        start: index of the first option.
        python: words that start DeepSpeed's Python; ``None`` where its script does.

    Raises:
        LaunchError: the command starts no Python process that can be recorded, or has an unknown option.
    """
    typed = OPTIONS.parse(words, start)
    for name, what in (("no_python", "starts no Python script"), ("autotuning", "makes launches of its own")):
        if name in typed.values:
            raise LaunchError(f"deepspeed's --{name} {what}")
    size_option = "num_gpus" if "num_gpus" in typed.values else "num_accelerators"
    processes = typed.number(size_option)
    left_open = "" if processes else "the number of processes, for which DeepSpeed counts the devices,"
    if any(name in typed.values for name in _SEVERAL_NODES) or os.path.isfile(HOSTFILE):  # noqa: PTH113 - False where /job may not be searched
        left_open = "the nodes and the number of processes"
    return LaunchCommand(
        program=check_program(words, typed.stop),
        is_module="module" in typed.switches,
        head_stop=typed.stop,
        args_start=typed.stop + 1,
        python=python,
        module_options=typed.switches.get("module", ()),
        nnodes=None if left_open else 1,
        nproc_per_node=None if left_open else processes,
        left_open=left_open,
        options_start=start,
        launcher=NAME,
        module_switch="--module",
        size_place=None if left_open else typed.places.get(size_option),
        starts_all_nodes=True,
    )
