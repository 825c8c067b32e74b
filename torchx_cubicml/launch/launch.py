"""The record of a user's command: the program, its arguments, and the shape of the job."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.trial import Value, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A user's command, parsed.

    Args:
        program: path of the script, or name of the module; empty where the command could not be read.
        is_module: whether it is started with ``-m``.
        script_args: arguments of the program, as it will see them.
        env: environment variables that the command sets.
        hooks: what the recorder is to set in the job where the program has no flag for it, by the hook's name.
        files: place of a config file in the command -> keys that the job's copy of it has other values at.
        world_size: processes of the job; ``None`` where it is decided only when the job starts.
        nnodes: nodes of the job, likewise.
        nproc_per_node: processes per node, likewise.
        resizable: which of ``nnodes`` and ``nproc_per_node`` can be changed before the launch.
        device: kind of host or device where the command names it; empty where unknown.
        scheduler: name of the TorchX scheduler, empty where unknown.
        mounted: folders that a container of the job has from outside under the same path, and can write to.
        not_rewritten: why this command may be recorded but not changed, in words; empty where it may.
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
    mounted: tuple[str, ...] = ()
    not_rewritten: str = ""


def workload_of(launch: Launch, facts: Mapping[str, Value] | None = None) -> Workload:
    """Return the workload of a launch: what every command says of itself, and the facts that a space file declares.

    >>> workload_of(Launch(program="./examples/train.py", world_size=2), {"n_layers": 4})
    {'program': 'examples/train.py', 'world_size': 2, 'n_layers': 4}
    """
    workload: dict[str, Value] = {"program": _program_name(launch)}
    if launch.world_size is not None:
        workload["world_size"] = launch.world_size
    if launch.device:
        workload["device"] = launch.device
    return workload | dict(facts or {})


def _program_name(launch: Launch) -> str:
    if launch.is_module:
        return f"-m {launch.program}"
    path = posixpath.normpath(launch.program)
    # The same script typed with and without its folder is one program.
    return path.removeprefix(f"{Path.cwd().as_posix()}/")
