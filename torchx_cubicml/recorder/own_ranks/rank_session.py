"""Recording of a rank that multiprocessing has started, from its process group to the end of its process."""

from __future__ import annotations

import sys
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.process.assignment import rank_assignment
from torchx_cubicml.recorder.session import Session

if TYPE_CHECKING:
    from torchx_cubicml.recorder.own_ranks.rank_starter import RankStarter

_RAISED_BY_TORCH = "torch.multiprocessing.spawn"  # module that turns an error of a rank into an exit
_AFTER_ALL_OTHERS = -100  # priority of a finalizer of multiprocessing


def record_rank(starter: RankStarter, *, rank: int, world_size: int) -> None:
    """Record this process as a rank of its starter's launch.

    Raises:
        ContractError: the starter's contract is damaged.
    """
    session = Session(rank_assignment(starter, rank=rank, world_size=world_size))
    # Neither ``atexit`` nor an exception reaches the end of a process that multiprocessing has forked.
    Finalize(None, _end, args=(session,), exitpriority=_AFTER_ALL_OTHERS)
    session.begin(closes_at_exit=False)


def _end(session: Session) -> None:
    """End the recording; multiprocessing calls this while it handles the exception that ends the process."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.__context__ is not None and _is_raised_by_torch(error):
        error = error.__context__
    if error is None:
        session.completed()
    elif isinstance(error, SystemExit):
        session.exited(error)
    else:
        session.failed(error)
    session.close()


def _is_raised_by_torch(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == _RAISED_BY_TORCH
