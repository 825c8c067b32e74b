"""Agreement of the nodes of a job on a second attempt, through the TCPStore of torchrun's agents.

Each node's process connects to the store that its ranks used. A node whose ranks failed by the config announces it, so
that the other nodes end their ranks rather than wait for them (``failure_watch``). Then all report, and one verdict
holds for all.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.attempt.early_failure import NodeReport, early_failure
from torchx_cubicml.recorder.attempt.rendezvous import KEPT_OUTSIDE
from torchx_cubicml.recorder.ranks.agreement import Verdict
from torchx_cubicml.recorder.ranks.tcp_store import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.recorder.attempt.notes import RankProcess

AGREE_S = 90.0  # for the other nodes' torchrun to end their ranks, which takes it up to 30 s
_PREFIX = "torchx_cubicml/second_attempt/"
_FAILED, _READY = f"{_PREFIX}failed", f"{_PREFIX}ready"
_NOTHING = "nothing"
_ANNOUNCED_S = 45.0  # for the node whose ranks failed first to end its other ranks and announce it
_STORE_S = 10.0  # limit of one call of the store
_POLL_S = 0.1
_NOTICED_S = 1.0  # for another host to see that all nodes are ready


class NodeAgreement:
    """Agreement of this node with the others.

    Args:
        process: a rank of this node.

    Raises:
        ConnectionError: torchrun hosts no TCPStore, or it does not answer.
    """

    def __init__(self, process: RankProcess) -> None:
        if process.store is None:
            raise ConnectionError("torchrun hosts no TCPStore for this job")
        self._host, self._port = process.store
        try:
            self._store: TCPStore = connect(self._host, self._port, within_s=_STORE_S)
        except RuntimeError as error:
            raise ConnectionError(f"torchrun's TCPStore at {self._host}:{self._port} does not answer") from error
        self._node, self._nnodes = process.node, process.nnodes

    @property
    def has_failed(self) -> bool:
        """True if a node announced a failure."""
        return bool(self._store.check([_FAILED]))

    def agree(self, report: NodeReport) -> str:
        """Return the early failure that all nodes agree on; empty if it is none, or a node gives no report.

        Raises:
            ConnectionError: the launch failed early, and its rendezvous stays closed.
            TimeoutError: this node failed early, and another gives no report.
        """
        if early_failure([report]):
            self._store.set(_FAILED, str(self._node))
        self._store.set(f"{_PREFIX}{self._node}", json.dumps(asdict(report)))
        keys = [f"{_PREFIX}{node}" for node in range(self._nnodes)]
        verdict, began = Verdict(self._store, f"{_PREFIX}verdict"), time.monotonic()
        while not verdict.value and time.monotonic() - began < (AGREE_S if self.has_failed else _ANNOUNCED_S):
            if self._store.check(keys):
                reports = [NodeReport(**json.loads(self._store.get(key))) for key in keys]
                hosted = any(each.hosts_rendezvous for each in reports)
                failure = early_failure(reports)
                verdict.decide((failure if hosted else KEPT_OUTSIDE) if failure else _NOTHING)
            time.sleep(_POLL_S)
        decided = verdict.decide(_NOTHING)
        if decided == KEPT_OUTSIDE:
            raise ConnectionError(KEPT_OUTSIDE)
        if decided != _NOTHING:
            return decided
        if early_failure([report]) and not self._store.check(keys):
            raise TimeoutError(f"no report from another node within {AGREE_S:.0f} s")
        return ""

    def hand_over(self, *, is_host: bool) -> None:
        """Wait until this node may start again: a host when all nodes are ready, another when the old store is gone.

        Args:
            is_host: whether this process hosts a store. Nodes that started before it would join the old rendezvous.
        """
        self._store.add(_READY, 1)
        until = time.monotonic() + AGREE_S
        while time.monotonic() < until and not (self._are_ready() if is_host else self._is_gone()):
            time.sleep(_POLL_S)
        if is_host:
            time.sleep(_NOTICED_S)

    def _are_ready(self) -> bool:
        try:
            return self._store.add(_READY, 0) >= self._nnodes
        except RuntimeError:  # its host has seen that all are ready, and has started again
            return True

    def _is_gone(self) -> bool:
        # A call of the store would print a trace of its C++ code.
        try:
            socket.create_connection((self._host, self._port), timeout=_STORE_S).close()
        except OSError:
            return True
        return False


def listening_ports(descriptors: Iterable[int]) -> frozenset[int]:
    """Return the ports of those descriptors that are listening TCP sockets."""
    ports = set[int]()
    for descriptor in descriptors:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
            if opened.family in {socket.AF_INET, socket.AF_INET6} and opened.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                ports.add(opened.getsockname()[1])
    return frozenset(ports)
