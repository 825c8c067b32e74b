"""Command line of Slurm's ``srun`` (22.05): the command behind its options, and the number of tasks.

https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.launchers.option_table import OptionTable, option_names, short_names

if TYPE_CHECKING:
    from torchx_cubicml.launch.launchers.option_table import TypedOptions
    from torchx_cubicml.launch.torchrun_command import LaunchCommand

NAME = "srun"
PROGRAMS = frozenset({"srun"})

OPTIONS = OptionTable(
    launcher="srun",
    with_value=option_names(
        "accel_bind account acctg_freq bb bbf bcast_exclude begin chdir cluster_constraint clusters comment constraint "
        "container core_spec cores_per_socket cpu_bind cpu_freq cpus_per_gpu cpus_per_task deadline delay_boot "
        "dependency distribution epilog error exclude export extra_node_info gid gpu_bind gpu_freq gpus "
        "gpus_per_node gpus_per_socket gpus_per_task gres gres_flags het_group hint input job_name jobid licenses "
        "mail_type mail_user mcs_label mem mem_bind mem_per_cpu mem_per_gpu mincpus mpi network nodefile nodelist "
        "nodes ntasks ntasks_per_core ntasks_per_gpu ntasks_per_node ntasks_per_socket open_mode output partition "
        "power prefer priority profile prolog qos relative reservation signal slurmd_debug sockets_per_node switches "
        "task_epilog task_prolog thread_spec threads threads_per_core time time_min tmp uid wait wckey"
    ),
    without_value=option_names(
        "contiguous disable_status exact help hold interactive label no_allocate no_kill overcommit overlap "
        "oversubscribe preserve_env pty quiet quit_on_interrupt reboot spread_job test_only unbuffered usage "
        "use_min_nodes verbose version whole"
    ),
    optional_value=option_names(
        "bcast compress exclusive immediate kill_on_bad_exit nice propagate resv_ports send_libs x11"
    ),
    short=short_names(
        "A=account b=begin B=extra_node_info c=cpus_per_task C=constraint d=dependency D=chdir e=error E=preserve_env "
        "F=nodefile G=gpus h=help H=hold i=input I=immediate J=job_name k=no_kill K=kill_on_bad_exit l=label "
        "L=licenses m=distribution M=clusters n=ntasks N=nodes o=output O=overcommit p=partition q=qos Q=quiet "
        "r=relative s=oversubscribe S=core_spec t=time T=threads u=unbuffered v=verbose V=version w=nodelist W=wait "
        "x=exclude X=disable_status Z=no_allocate"
    ),
    joined_short=True,
)
"""Options of ``srun``; an abbreviated one is unknown here."""


def sized(command: LaunchCommand, typed: TypedOptions) -> LaunchCommand:
    """Return the command of one task as a command of srun, with its size.

    Without ``--nodes``, Slurm chooses the nodes: those of the allocation, or as many as the tasks need.

    Args:
        command: what each task runs, at its place in the whole command.
        typed: options of srun.
    """
    nodes, tasks, per_node = (typed.number(name) for name in ("nodes", "ntasks", "ntasks_per_node"))
    tasks = nodes * per_node if tasks is None and nodes and per_node else tasks
    is_even = bool(nodes and tasks and tasks % nodes == 0)
    return replace(
        command,
        launcher=NAME,
        nnodes=nodes if is_even else None,
        nproc_per_node=tasks // nodes if is_even and tasks and nodes else None,
        n_processes=tasks,
        left_open="" if tasks else "the number of tasks",
        size_place=typed.places.get("ntasks") if is_even and nodes == 1 else None,
        starts_all_nodes=True,
    )
