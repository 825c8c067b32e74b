from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torch.distributed import TCPStore

from torchx_cubicml.recorder.attempt import nodes
from torchx_cubicml.recorder.attempt.early_failure import NodeReport
from torchx_cubicml.recorder.attempt.first_attempt import open_descriptors
from torchx_cubicml.recorder.attempt.nodes import NodeAgreement, listening_ports
from torchx_cubicml.recorder.attempt.notes import RankProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FAILED = NodeReport(failure="failed", stepped=False, saved=False, seconds=20.0)
ENDED = NodeReport(failure="", stepped=False, saved=False, seconds=25.0)
MEMORY = NodeReport(failure="ran out of memory", stepped=True, saved=False, seconds=20.0)
OUTSIDE = replace(FAILED, hosts_rendezvous=False)
SAVED = NodeReport(failure="failed", stepped=True, saved=True, seconds=20.0)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def agreement(store: TCPStore, node: int, nnodes: int = 2) -> NodeAgreement:
    address = ("127.0.0.1", store.port)
    return NodeAgreement(RankProcess(pid=0, node=node, nnodes=nnodes, store=address))


def agree(store: TCPStore, reports: Sequence[NodeReport]) -> list[str]:
    """Return the verdict of each node; all of them report at once."""
    members = [agreement(store, node, len(reports)) for node in range(len(reports))]
    with ThreadPoolExecutor(len(reports)) as threads:
        return list(threads.map(NodeAgreement.agree, members, reports))


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        ([FAILED, ENDED], "failed before its first measured steps"),
        ([ENDED, FAILED], "failed before its first measured steps"),
        ([OUTSIDE, ENDED], "failed before its first measured steps"),
        ([ENDED, FAILED, MEMORY], "ran out of memory after 25 s, before a checkpoint"),
        ([FAILED, SAVED], ""),
        ([ENDED, ENDED], ""),
    ],
    ids=["the first", "the last", "the other hosts the rendezvous", "two of three", "after a checkpoint", "none"],
)
def test_one_verdict_holds_for_all_nodes(store: TCPStore, reports: list[NodeReport], verdict: str) -> None:
    assert agree(store, reports) == [verdict] * len(reports)
    assert agreement(store, 0).has_failed == (reports != [ENDED, ENDED])


def test_a_failure_is_announced_before_the_others_report(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes then need time to end their ranks; without an announcement no report of theirs may come."""
    monkeypatch.setattr(nodes, "_ANNOUNCED_S", 0.0)
    first, second = agreement(store, 0), agreement(store, 1)
    assert not second.has_failed
    with ThreadPoolExecutor(1) as thread:
        verdict = thread.submit(first.agree, FAILED)
        while not second.has_failed:
            time.sleep(0.01)
        assert not verdict.done()
        assert second.agree(ENDED) == verdict.result() == "failed before its first measured steps"


def test_without_a_node_no_failure_is_agreed(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "AGREE_S", 0.3)
    with pytest.raises(TimeoutError, match="no report from another node within 0 s"):
        agreement(store, 0).agree(FAILED)
    assert agreement(store, 1).agree(FAILED) == "", "it comes too late"


def test_without_a_node_another_end_is_the_jobs_own(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_ANNOUNCED_S", 0.3)
    assert agreement(store, 0).agree(ENDED) == ""
    assert agreement(store, 1).agree(FAILED) == "", "it comes too late"


def test_a_host_starts_again_once_all_are_ready_and_the_others_once_its_store_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "_NOTICED_S", 0.0)
    hosted = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    host, other, watching = (agreement(hosted[0], node) for node in (0, 1, 1))
    with ThreadPoolExecutor(2) as threads:
        host_waits = threads.submit(host.hand_over, is_host=True)
        while not watching._store.add(nodes._READY, 0):
            time.sleep(0.01)
        assert not host_waits.done()
        other_waits = threads.submit(other.hand_over, is_host=False)
        host_waits.result()
        assert not other_waits.done()
        hosted.clear()
        other_waits.result()


def test_a_host_that_is_gone_had_seen_all() -> None:
    """Several nodes may host a store, and one starts again before another has looked."""
    hosted = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    other = agreement(hosted[0], 1)
    hosted.clear()
    assert other._are_ready()


def test_no_node_follows_where_the_rendezvous_stays_closed(store: TCPStore) -> None:
    members, ended = [agreement(store, node) for node in range(2)], replace(ENDED, hosts_rendezvous=False)
    with ThreadPoolExecutor(2) as threads:
        verdicts = [threads.submit(NodeAgreement.agree, *each) for each in zip(members, [OUTSIDE, ended], strict=True)]
    for verdict in verdicts:
        with pytest.raises(ConnectionError, match="the rendezvous is hosted outside this launch, and stays closed"):
            verdict.result()


def test_a_job_without_a_store_cannot_agree() -> None:
    with pytest.raises(ConnectionError, match="torchrun hosts no TCPStore"):
        NodeAgreement(RankProcess(pid=0, node=0, nnodes=2, store=None))


def test_a_job_whose_store_is_gone_cannot_agree(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_STORE_S", 0.3)
    with pytest.raises(ConnectionError, match=f"TCPStore at 127.0.0.1:{free_port} does not answer"):
        NodeAgreement(RankProcess(pid=0, node=0, nnodes=2, store=("127.0.0.1", free_port)))


def test_a_listening_socket_is_that_of_a_host() -> None:
    before = open_descriptors()
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert listening_ports(open_descriptors() - before) == {server.port}
    before = open_descriptors()
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    assert open_descriptors() - before
    assert not listening_ports(open_descriptors() - before)
    del client


def test_a_socket_counts_once_it_listens_and_stays_open() -> None:
    with socket.socket() as opened:
        assert not listening_ports([opened.fileno()])
        opened.listen()
        assert listening_ports([opened.fileno()]) == {opened.getsockname()[1]}
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_other_descriptors_host_nothing(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    with (
        (tmp_path / "file").open("w") as file,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        local.bind(str(tmp_path / "socket"))
        local.listen()
        assert not listening_ports([reads, writes, file.fileno(), local.fileno(), datagrams.fileno()])
    os.close(reads)
    os.close(writes)
    assert not listening_ports([reads, writes])
    assert not listening_ports([])
