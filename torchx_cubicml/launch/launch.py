"""Record of a launch command: the program, its arguments, and the size of the job."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.project import project_of
from torchx_cubicml.records.workload import PROJECT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Value, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A user's command, parsed.

    Args:
        program: path of the script, or name of the module; empty if the command could not be read.
        is_module: whether it is started with ``-m``.
        script_args: arguments of the program, as the program receives them.
        env: environment variables that the command sets.
        hooks: hook name -> value that the recorder sets in the job, where the program has no flag for it.
        files: argument or variable that names a config file -> key -> new value in the job's copy of the file.
        world_size: processes of the job; ``None`` if decided only when the job starts.
        nnodes: nodes of the job, likewise.
        nproc_per_node: processes per node, likewise.
        resizable: those of ``nnodes`` and ``nproc_per_node`` that can be changed before the launch.
        device: kind of host or device that the command names; empty if unknown.
        scheduler: name of the TorchX scheduler; empty if unknown.
        component_options: option of the TorchX component, as its flag (``--gpu``, ``-h``) -> text of its value, empty
            for none; its size (``-j``) and script arguments left out.
        scheduler_options: option of the scheduler -> text of its value, as ``-cfg`` or ``.torchxconfig`` states it.
        submits: whether who changes the launch also submits it, so that it can change options of the scheduler.
        mounted: writable folders mounted into a container of the job under the path they have outside.
        why_not_rewritten: reason why the command may be recorded but not changed; empty if it may be changed.
        can_have_second_attempt: whether the command can be started again in the same job, after a rewritten one failed.
        launcher: name of the launcher that the command names in place of torchrun; empty for torchrun and Python.
        launcher_args: options of that launcher, if it starts the program itself.
    """

    program: str
    is_module: bool = False
    script_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, Value] = field(default_factory=dict)
    files: Mapping[str, Mapping[tuple[str, ...], Value]] = field(default_factory=dict)
    world_size: int | None = None
    nnodes: int | None = None
    nproc_per_node: int | None = None
    resizable: frozenset[str] = frozenset()
    device: str = ""
    scheduler: str = ""
    component_options: Mapping[str, str] = field(default_factory=dict)
    scheduler_options: Mapping[str, str] = field(default_factory=dict)
    submits: bool = False
    mounted: tuple[str, ...] = ()
    why_not_rewritten: str = ""
    can_have_second_attempt: bool = False
    launcher: str = ""
    launcher_args: tuple[str, ...] = ()


def changed_scheduler_options(launch: Launch, typed: Launch) -> dict[str, str]:
    """Return the options of the scheduler that a launch has and the typed one lacks, or has with another value."""
    options, own = launch.scheduler_options.items(), typed.scheduler_options
    return {name: text for name, text in options if own.get(name) != text}


def has_same_nodes(one: Launch, other: Launch) -> bool:
    """Return whether two launches of one command get the same nodes, whatever they run on them."""
    return (one.nnodes, dict(one.component_options)) == (other.nnodes, dict(other.component_options))


def workload_of(launch: Launch, facts: Mapping[str, Value] | None = None, *, project: str = "") -> Workload:
    """Return the workload of a launch: facts of every command, and those that a space file declares.

    Args:
        launch: a command.
        facts: declared facts.
        project: name of the program's project that a space file states; empty for none.

    >>> workload_of(Launch(program="./examples/train.py", world_size=2), {"n_layers": 4})
    {'program': 'examples/train.py', 'world_size': 2, 'n_layers': 4}
    """
    workload: dict[str, Value] = {"program": _program_name(launch)}
    if identities := project_of(launch.program, is_module=launch.is_module, stated=project):
        workload[PROJECT] = identities
    if launch.world_size is not None:
        workload["world_size"] = launch.world_size
    if launch.device:
        workload["device"] = launch.device
    return workload | dict(facts or {})


def _program_name(launch: Launch) -> str:
    if launch.is_module:
        return f"-m {launch.program}"
    path = posixpath.normpath(launch.program)
    # A script typed with its folder and without is the same program.
    return path.removeprefix(f"{Path.cwd().as_posix()}/")
