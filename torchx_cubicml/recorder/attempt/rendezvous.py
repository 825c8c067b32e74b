"""Rendezvous of torchrun's agents: whether it ends with this launch, so that a second attempt opens a new one.

A torchrun that fails closes its rendezvous under the id of the job. A rendezvous that is kept outside the launch, as
by a TCPStore of another process or by etcd, stays closed: a second torchrun would end with ``RendezvousClosedError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

KEPT_OUTSIDE = "the rendezvous is hosted outside this launch, and stays closed"
_C10D_PORT = 29400  # of torchrun, where the endpoint names none


def hosts_rendezvous(arguments: Sequence[str], ports: Collection[int]) -> bool:
    """Return whether a torchrun process hosts its rendezvous.

    Args:
        arguments: of torchrun, whose options may stand in the environment, too.
        ports: TCP ports on which the process listens.
    """
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
    from torch.distributed.run import parse_args

    options = parse_args(list(arguments))  # type: ignore[no-untyped-call]  # of torch
    if options.standalone or options.rdzv_backend == "static":  # the node of rank 0 hosts a new one
        return bool(ports)
    if options.rdzv_backend != "c10d" or "store_type=file" in options.rdzv_conf.replace(" ", ""):
        return False
    port = parse_rendezvous_endpoint(options.rdzv_endpoint, default_port=_C10D_PORT)[1]
    return port in ports if port else bool(ports)
