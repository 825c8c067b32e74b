"""Client of the TCPStore that torchrun's agents keep for rendezvous: the only channel outside of the training."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.settings import JobEnvironment


def connected(job: JobEnvironment, *, within_s: float) -> TCPStore:
    """Connect to the store of the job's agents; connecting and each later call time out after ``within_s`` seconds.

    Raises:
        ConnectionError: there is no store.
        RuntimeError: it does not answer.
    """
    if job.store_address is None:
        raise ConnectionError("torchrun hosts no TCPStore for this job")
    return connect(*job.store_address, within_s=within_s)


def connect(host: str, port: int, *, within_s: float) -> TCPStore:
    """Connect to a store by its host and port; see ``connected``."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch re-exports it without declaring so

    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=within_s), wait_for_workers=False)
