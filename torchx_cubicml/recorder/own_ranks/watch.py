"""Watch over the ranks that a single recorded process starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torchx_cubicml.errors import ContractError
from torchx_cubicml.recorder.own_ranks.group_joins import on_every_join
from torchx_cubicml.recorder.own_ranks.rank_starter import RankStarter
from torchx_cubicml.recorder.own_ranks.rank_starts import watch_starts
from torchx_cubicml.recorder.process.console import warn

if TYPE_CHECKING:
    from torchx_cubicml.recorder.session import Session


def watch_own_ranks(session: Session) -> None:
    """Let the ranks that a process starts be recorded as those of its launch; a rank of a larger job starts none."""
    assignment = session.assignment
    if assignment.job.world_size > 1 or assignment.starter is not None:
        return
    try:
        starter = RankStarter.of(assignment.contract, trial_id=assignment.trial_id, pid=os.getpid())
    except ContractError as error:  # the name of the trial makes it too large
        warn(f"ranks that the program starts itself are not recorded: {error}")
        return
    watch_starts(starter, session.note_started_process)
    recorded: list[int] = []

    def joined(rank: int, world_size: int) -> None:
        """Record a process that multiprocessing has forked; it has no other moment at which it could begin."""
        from multiprocessing.process import parent_process

        if os.getpid() in (starter.pid, *recorded) or parent_process() is None:
            return
        recorded.append(os.getpid())
        try:
            from torchx_cubicml.recorder.own_ranks.rank_session import record_rank

            record_rank(starter, rank=rank, world_size=world_size)
        except Exception as error:  # noqa: BLE001 - a recorder failure must not stop a rank
            warn(f"rank {rank} is not recorded: {type(error).__name__}: {error}")

    on_every_join(joined)
