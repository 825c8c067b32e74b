"""The TCPStore that torchrun's agents keep for a job: the one way by which its ranks meet outside of the training."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.settings import JobEnvironment


def connected(job: JobEnvironment, *, within_s: float) -> TCPStore:
    """Return the store of the job's agents, whose calls give up after ``within_s`` seconds, as connecting does.

    Raises:
        ConnectionError: there is none.
        RuntimeError: it does not answer.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch hands it on without saying so

    if job.store_address is None:
        raise ConnectionError("torchrun keeps no store for this job")
    host, port = job.store_address
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=within_s), wait_for_workers=False)
