from __future__ import annotations

import socket
import threading
import time

import pytest
from torch.distributed import TCPStore

from torchx_cubicml.recorder.peers import Peers
from torchx_cubicml.settings import read_job_environment


def peers(rank: int, port: int, *, world_size: int = 2) -> Peers:
    environment = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Peers(read_job_environment({**environment, **address}))


@pytest.fixture(scope="module")
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_rank_finds_what_another_has_posted(store: TCPStore) -> None:
    first, second = peers(0, store.port), peers(1, store.port)
    assert second.ask("nothing", within_s=0.2) == ""
    threading.Timer(0.2, lambda: first.post("trial_id", "trial-1", within_s=2)).start()
    assert second.ask("trial_id", within_s=5) == "trial-1"


def test_the_largest_memory_of_the_others(store: TCPStore) -> None:
    first, *others = (peers(rank, store.port, world_size=4) for rank in range(4))
    assert first.memory_gib(within_s=2) == 0.0
    for gib, other in zip((1.5, 2.5), others, strict=False):
        other.post(f"memory/{int(2 * gib - 2)}", str(gib), within_s=2)
    first.post("memory/0", "99", within_s=2)
    assert first.memory_gib(within_s=2) == 2.5


def test_ranks_meet(store: TCPStore) -> None:
    first, second = peers(0, store.port), peers(1, store.port)
    start = time.monotonic()
    late = threading.Timer(0.4, lambda: second.meet(within_s=5))
    late.start()
    first.meet(within_s=5)
    assert 0.3 < time.monotonic() - start < 4
    late.join()


def test_a_store_that_is_gone_or_silent_costs_its_limit_at_most() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alone = peers(0, silent.getsockname()[1])
        start = time.monotonic()
        assert alone.ask("trial_id", within_s=0.3) == ""
        assert alone.memory_gib(within_s=0.3) == 0.0
        alone.meet(within_s=0.3)
        alone.post("memory/0", "1")
        assert time.monotonic() - start < 3


def test_a_process_without_others_asks_nobody() -> None:
    alone = Peers(read_job_environment({}))
    assert not alone.exist
    alone.post("trial_id", "x", within_s=5)
    assert alone.ask("trial_id", within_s=5) == ""
    alone.meet(within_s=5)


@pytest.mark.parametrize(
    ("words", "agreed"),
    [(("same", "same"), True), (("same", "other"), False), (("same", ""), False), (("same",), False)],
    ids=["alike", "different", "one-against", "one-missing"],
)
def test_ranks_agree_only_where_all_come_with_the_same(store: TCPStore, words: tuple[str, ...], agreed: bool) -> None:
    question = f"question/{'-'.join(words)}/{len(words)}"
    answers: dict[int, bool] = {}

    def ask(rank: int, word: str) -> None:
        answers[rank] = peers(rank, store.port).agree(question, word, within_s=1 if len(words) == 1 else 20)

    threads = [threading.Thread(target=ask, args=entry) for entry in enumerate(words)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(len(words)), agreed)
