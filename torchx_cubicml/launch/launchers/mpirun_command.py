"""Command line of Open MPI's ``mpirun`` (4.1): the command behind its options, and the number of processes.

https://docs.open-mpi.org/en/v4.1.x/man-openmpi/man1/mpirun.1.html
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.launchers.option_table import OptionTable, option_names

if TYPE_CHECKING:
    from torchx_cubicml.launch.launchers.option_table import TypedOptions
    from torchx_cubicml.launch.torchrun_command import LaunchCommand

NAME = "mpirun"
PROGRAMS = frozenset({"mpirun", "mpiexec", "orterun"})

_WITH_VALUE = option_names(
    "n np c H host hostfile machinefile default_hostfile x wdir wd path bind_to map_by rank_by report_uri "
    "output_filename stdin prefix N npernode npersocket timeout am tune personality app rankfile "
    "ompi_server max_restarts"
)
_WITHOUT_VALUE = option_names(
    "help version verbose quiet v q V h allow_run_as_root oversubscribe nooversubscribe use_hwthread_cpus tag_output "
    "timestamp_output xterm display_map display_allocation report_bindings bind_to_core bind_to_socket bind_to_none "
    "byslot bynode nolocal disable_recovery enable_recovery continuous merge_stderr_to_stdout get_stack_traces "
    "report_state_on_timeout preload_binary"
)
_WITH_TWO_VALUES = {"mca": 2, "gmca": 2}

OPTIONS = OptionTable(
    launcher="mpirun",
    with_value=_WITH_VALUE,
    without_value=_WITHOUT_VALUE,
    values=_WITH_TWO_VALUES,
    # mpirun takes each option with one hyphen, too.
    short={name.replace("_", "-"): name for name in (*_WITH_VALUE, *_WITHOUT_VALUE, *_WITH_TWO_VALUES)},
)
"""Options of ``mpirun``; what it abbreviates is unknown here."""

_COUNTS = ("np", "n", "c")
_SEVERAL_NODES = ("H", "host", "hostfile", "machinefile", "default_hostfile", "rankfile", "N", "npernode")


def sized(command: LaunchCommand, typed: TypedOptions) -> LaunchCommand:
    """Return the command of one process as a command of mpirun, with its size.

    Args:
        command: what each process runs, at its place in the whole command.
        typed: options of mpirun.
    """
    option = next((name for name in _COUNTS if name in typed.values), "")
    processes = typed.number(option)
    left_open = "" if processes else "the number of processes"
    if any(name in typed.values for name in _SEVERAL_NODES):
        left_open = "the nodes and the number of processes"
    return replace(
        command,
        launcher=NAME,
        nnodes=None if left_open else 1,
        nproc_per_node=None if left_open else processes,
        left_open=left_open,
        size_place=None if left_open else typed.places[option],
        starts_all_nodes=True,
    )
