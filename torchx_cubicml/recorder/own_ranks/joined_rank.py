"""Wait of a process that multiprocessing has started: once it joins a process group, it is recorded as a rank.

A process that joins none, such as a data loader, gets nothing but this module and one hook. At its top the module
imports what every Python has loaded, because the program's folder may hold a module of any other name.
"""

from __future__ import annotations

import os
import sys


def await_group(contract: str, pid: int, began: float) -> None:
    """Record this process once it joins a process group; the arguments are those of its ``RankStarter``."""
    from torchx_cubicml.recorder.own_ranks.group_joins import on_every_join

    has_joined: list[bool] = []

    def joined(rank: int, world_size: int) -> None:
        if not has_joined:
            has_joined.append(True)
            _import_and_record(contract, pid, began, rank=rank, world_size=world_size)

    on_every_join(joined)


def _import_and_record(contract: str, pid: int, began: float, *, rank: int, world_size: int) -> None:
    from torchx_cubicml.recorder.process.console import warn

    before, path = frozenset(sys.modules), list(sys.path)
    try:
        library = os.path.dirname(os.__file__)  # noqa: PTH120 - the program's folder may hold a pathlib.py
        sys.path.sort(key=lambda entry: entry not in {library, f"{library}/lib-dynload"})
        try:
            from torchx_cubicml.recorder.own_ranks.rank_session import record_rank
            from torchx_cubicml.recorder.own_ranks.rank_starter import RankStarter
            from torchx_cubicml.recorder.process.import_path import unload_shadowed_modules
        finally:
            sys.path[:] = path
        unload_shadowed_modules(before)
        record_rank(RankStarter(contract=contract, pid=pid, began=began), rank=rank, world_size=world_size)
    except Exception as error:  # noqa: BLE001 - a recorder failure must not stop a rank
        warn(f"rank {rank} is not recorded: {type(error).__name__}: {error}")
