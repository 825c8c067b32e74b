from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from torch.distributed import TCPStore

from torchx_cubicml.recorder.ranks.peers import Peers, RankWork, encode_rank_work
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Iterator


MADE: list[Peers] = []


def peers(rank: int, port: int, *, world_size: int = 2) -> Peers:
    environment = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    made = Peers(read_job_environment({**environment, **address}))
    MADE.append(made)
    return made


@pytest.fixture(autouse=True)
def nobody_is_left_at_a_store() -> Iterator[None]:
    """A thread that comes back from there while the interpreter ends would abort it."""
    yield
    while MADE:
        MADE.pop().close(within_s=20)


@pytest.fixture(scope="module")
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_rank_finds_what_another_has_posted(store: TCPStore) -> None:
    first, second = peers(0, store.port), peers(1, store.port)
    assert second.ask("nothing", within_s=0.2) == ""
    threading.Timer(0.2, lambda: first.post("trial_id", "trial-1", within_s=60)).start()
    assert second.ask("trial_id", within_s=60) == "trial-1"


def test_work_of_other_ranks_is_summed(store: TCPStore) -> None:
    first, *others = (peers(rank, store.port, world_size=4) for rank in range(4))
    assert first.work(within_s=60) == RankWork()
    for size, other in enumerate(others, start=1):
        has_ended = size > 1
        other.post_work(encode_rank_work(1.5 * size, 10.0 * size, None, has_ended=has_ended), within_s=60)
    first.post_work(encode_rank_work(99.0, 99.0, 99.0, has_ended=True), within_s=60)
    work = first.work(within_s=60)
    assert work == RankWork(peak_memory_gib=4.5, samples=(10.0, 20.0, 30.0), tokens=(), has_ended=False)
    assert work.mean_with(40.0, 7.0) == (25.0, 7.0)
    assert work.mean_with(None, None) == (None, None)
    assert work.differs(10.0, None)
    assert not RankWork(samples=(10.0,)).differs(10.0, 640.0)
    assert RankWork(samples=(10.0,), tokens=(600.0,)).differs(10.0, 640.0)
    assert not work.differs(None, None)
    others[0].post_work(encode_rank_work(1.5, 10.0, None, has_ended=True), within_s=60)
    assert first.work(within_s=60).has_ended
    others[0].post_work(encode_rank_work(1.5, 10.0, None, has_ended=True, training=2), within_s=60)
    another = first.work(within_s=60)
    assert len(another.samples) == len(work.samples) - 1, "work of another training is left out"
    assert another.has_ended
    assert first.work(within_s=60, training=2).samples == (10.0,)


def test_ranks_meet(store: TCPStore) -> None:
    first, second = peers(0, store.port), peers(1, store.port)
    start = time.monotonic()
    late = threading.Timer(0.4, lambda: second.meet(within_s=60))
    late.start()
    first.meet(within_s=60)
    assert 0.3 < time.monotonic() - start < 30
    late.join()


def forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(4096):
            sink.sendall(piece)


def test_a_silent_store_costs_a_call_its_limit_at_most(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx_cubicml.recorder.ranks.peers._CONNECT_S", 120.0)  # the store's own limit
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alone = peers(0, silent.getsockname()[1])
        assert alone.ask("trial_id", within_s=0.3) == ""
        (first,) = alone._threads
        assert alone.work(within_s=0.3) is None
        alone.meet(within_s=0.3)
        alone.post_work("[1, null, null, false]")
        assert first.is_alive(), "no call has waited until the first one was given up by the store"
        here, there = silent.accept()[0], socket.create_connection(("127.0.0.1", store.port))
        with here, there:  # the store answers in the end, so that no thread is left
            for ends in ((here, there), (there, here)):
                threading.Thread(target=forward, args=ends, daemon=True).start()
            alone.close(within_s=60)
            assert not any(thread.is_alive() for thread in alone._threads)


def test_a_single_process_asks_nobody() -> None:
    alone = Peers(read_job_environment({}))
    assert not alone.exist
    alone.post("trial_id", "x", within_s=60)
    assert alone.ask("trial_id", within_s=60) == ""
    alone.meet(within_s=60)


@pytest.mark.parametrize(
    ("words", "agreed"),
    [(("same", "same"), True), (("same", "other"), False), (("same", ""), False), (("same",), False)],
    ids=["alike", "different", "one-against", "one-missing"],
)
def test_ranks_agree_only_where_all_come_with_the_same(store: TCPStore, words: tuple[str, ...], agreed: bool) -> None:
    question = f"question/{'-'.join(words)}/{len(words)}"
    answers: dict[int, bool] = {}

    def ask(rank: int, word: str) -> None:
        answers[rank] = peers(rank, store.port).agree(question, word, within_s=1 if len(words) == 1 else 60)

    threads = [threading.Thread(target=ask, args=entry) for entry in enumerate(words)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(len(words)), agreed)


class Slow:
    """A store that answers when it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.set_to: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.go.wait(10)
        self.set_to[key] = value

    def check(self, keys: list[str]) -> bool:
        return False


def test_a_closed_store_holds_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    first, store = peers(0, 29500), Slow()
    monkeypatch.setattr(Peers, "_connect", lambda self: store)
    first.post("trial_id", "t-1")
    first.gather(["stage/1"])  # would search for half a minute
    threading.Timer(0.2, store.go.set).start()
    first.close(within_s=60)
    assert list(store.set_to.values()) == ["t-1"]
    assert not any(thread.is_alive() for thread in first._threads)


def test_a_store_that_never_answers_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    first, store = peers(0, 29500), Slow()
    monkeypatch.setattr(Peers, "_connect", lambda self: store)
    first.post("trial_id", "t-1")
    first.close(within_s=0.05)
    assert not store.set_to
    store.go.set()
