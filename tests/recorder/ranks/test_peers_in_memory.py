"""What ranks post and ask, with a store in memory and a clock that only its readers move."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.recorder.model.fake_ranks import fake_ranks
from tests.recorder.ranks.stores import Clock, MemoryStore
from torchx_cubicml.recorder.ranks import peers as peers_module
from torchx_cubicml.recorder.ranks.peers import Peers, RankWork, encode_rank_work
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_S = 60.0


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setattr(peers_module, "connected", lambda job, within_s: made)
    return made


def peers(rank: int = 0, world_size: int = 2, *, has_store: bool = True) -> Peers:
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": str(has_store),
    }
    return Peers(read_job_environment(variables))


def at(monkeypatch: pytest.MonkeyPatch, asking: Peers, events: dict[float, Callable[[], object]]) -> Clock:
    """Let time pass for these ranks only where they wait between two questions."""
    clock = Clock(events)
    monkeypatch.setattr(time, "monotonic", clock.now)
    monkeypatch.setattr(asking._closing, "wait", clock.sleep)
    return clock


@pytest.mark.parametrize(("world_size", "has_store", "exist"), [(2, True, True), (1, True, False), (2, False, False)])
def test_others_exist_where_a_store_is(world_size: int, has_store: bool, exist: bool, store: MemoryStore) -> None:
    one = peers(world_size=world_size, has_store=has_store)
    assert one.exist is exist
    one.post("name", "word", within_s=LONG_S)
    assert len(store.values) == exist
    assert one.ask("name", within_s=LONG_S) == ("word" if exist else "")
    assert one.gather(["name"], within_s=LONG_S) == (["word"] if exist else [])
    assert one.work(within_s=LONG_S) == RankWork()
    assert one.agree("vote", "", within_s=LONG_S) is False


def test_one_rank_alone_agrees_with_itself() -> None:
    assert peers(world_size=1, has_store=False).agree("vote", "word", within_s=LONG_S)
    assert not peers(world_size=2, has_store=False).agree("vote", "word", within_s=LONG_S)


def test_a_process_that_trains_with_ranks_of_its_own_agrees_to_nothing() -> None:
    with fake_ranks(2):
        assert not peers(world_size=1, has_store=False).agree("vote", "word", within_s=LONG_S)


def test_one_connection_serves_all_calls(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    limits: list[float] = []

    def connected(job: object, *, within_s: float) -> MemoryStore:
        limits.append(within_s)
        return store

    monkeypatch.setattr(peers_module, "connected", connected)
    one = peers()
    one.post("name", "word", within_s=LONG_S)
    one.post("name", "another", within_s=LONG_S)
    assert one.ask("name", within_s=LONG_S) == "another"
    assert limits == [3.0]


def test_a_value_is_asked_for_often(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    first, second = peers(), peers(1)
    clock = at(monkeypatch, first, {0.5: lambda: second.post("name", "word", within_s=LONG_S)})
    assert first.ask("name", within_s=2.0) == "word"
    assert 100.5 <= clock.now_s < 100.6


@pytest.mark.parametrize(("within_s", "found"), [(0.45, ""), (0.5, "word")])
def test_a_value_is_asked_for_until_the_limit(
    within_s: float, found: str, monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    monkeypatch.setattr(peers_module, "_PAUSE_S", 0.125)
    first, second = peers(), peers(1)
    at(monkeypatch, first, {0.625: lambda: second.post("name", "word", within_s=LONG_S)})
    assert first._wait_for("name", within_s) == found


def test_a_closing_rank_asks_no_more(store: MemoryStore) -> None:
    one = peers()
    one._closing.set()
    assert one._wait_for("name", LONG_S) == ""
    assert not one._barrier(LONG_S)


@pytest.mark.parametrize(("at_s", "found"), [(29.5, ["one", "two"]), (30.5, [])], ids=["in time", "too late"])
def test_a_background_search_lasts_half_a_minute(
    at_s: float, found: list[str], monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    monkeypatch.setattr(peers_module, "_PAUSE_S", 0.25)
    first, second = peers(), peers(1)
    second.post("stage/0", "one", within_s=LONG_S)
    at(monkeypatch, first, {at_s: lambda: second.post("stage/1", "two", within_s=LONG_S)})
    first._gather_all(["stage/0", "stage/1"])
    assert first.gather([]) == found


def test_what_was_gathered_stays(store: MemoryStore) -> None:
    first, second = peers(), peers(1)
    for name in ("one", "two"):
        second.post(name, name.upper(), within_s=LONG_S)
    assert first.gather(["one", "two"], within_s=LONG_S) == ["ONE", "TWO"]
    store.values.clear()
    assert first.gather(["one", "two"]) == ["ONE", "TWO"]


def test_one_search_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go, searches = threading.Event(), []

    def search(names: list[str]) -> None:
        searches.append(names)
        go.wait(LONG_S)

    one = peers()
    monkeypatch.setattr(one, "_gather_all", search)
    assert one.gather(["name"]) == one.gather(["name"], within_s=0.01) == []
    assert searches == [["name"]]
    go.set()
    one.close(within_s=LONG_S)
    one.gather(["name"], within_s=LONG_S)
    assert len(searches) == 2


def test_a_value_is_dropped_while_one_is_sent(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    go, sent = threading.Event(), []
    monkeypatch.setattr(store, "set", lambda key, value: (go.wait(LONG_S), sent.append(value)))
    one = peers()
    for value in ("first", "dropped"):
        one.post("name", value)
    one.post("another", "kept")
    go.set()
    one.close(within_s=LONG_S)
    assert sorted(sent) == ["first", "kept"]
    one.post("name", "last", within_s=LONG_S)
    assert sent[-1] == "last"


def test_work_is_that_of_the_others(store: MemoryStore) -> None:
    first, second, third = (peers(rank, 3) for rank in range(3))
    first.post_work(encode_rank_work(9.0, 9.0, 9.0, has_ended=True), within_s=LONG_S)
    second.post_work(encode_rank_work(2.0, None, 64.0, has_ended=True), within_s=LONG_S)
    only = RankWork(peak_memory_gib=2.0, samples=(), tokens=(64.0,), has_ended=False)
    assert first.work(within_s=LONG_S) == only
    third.post_work(encode_rank_work(1.0, 4.0, None, has_ended=True), within_s=LONG_S)
    both = RankWork(peak_memory_gib=2.0, samples=(4.0,), tokens=(64.0,), has_ended=True)
    assert first.work(within_s=LONG_S) == both
    third.post_work(encode_rank_work(1.0, 4.0, None, has_ended=False), within_s=LONG_S)
    assert not first.work(within_s=LONG_S).has_ended


@pytest.mark.parametrize(
    ("own", "others", "differs"),
    [
        (10.0, (10.0, 10.0), False),
        (10.0, (10.0, 15.0), True),
        (10.0, (5.0, 10.0), True),
        (10.0, (10.0 + 1e-9,), False),
        (10.0, (10.0 + 1e-7,), True),
        (0.0, (0.0,), False),
        (None, (10.0,), False),
        (10.0, (), False),
    ],
)
def test_work_differs_beyond_rounding(own: float | None, others: tuple[float, ...], differs: bool) -> None:
    assert RankWork(samples=others).differs(own, None) is differs
    assert RankWork(tokens=others).differs(None, own) is differs
    assert not RankWork(samples=others).differs(None, own)


def test_ranks_meet_once_all_came(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    first, second, third = (peers(rank, 3) for rank in range(3))
    assert not second._barrier(0.0)
    clock = at(monkeypatch, first, {1.0: lambda: third._barrier(0.0)})
    assert first._barrier(2.0)
    assert 101.0 <= clock.now_s < 101.1
    first.meet(within_s=LONG_S)  # the next one finds all of them
    assert clock.now_s < 101.1


def test_a_rank_waits_for_the_others_to_the_limit(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    one = peers()
    monkeypatch.setattr(peers_module, "_PAUSE_S", 0.25)
    clock = at(monkeypatch, one, {})
    assert not one._barrier(2.0)
    assert clock.now_s == 102.0


def test_a_vote_has_time_to_connect_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    one = peers()
    monkeypatch.setattr(one, "_limited", lambda call, within_s: limits.append(within_s))
    assert one.agree("vote", "word", within_s=10.0) is False
    assert limits == [16.0]


def test_a_failed_call_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: object, within_s: float) -> MemoryStore:
        raise RuntimeError("no store")

    monkeypatch.setattr(peers_module, "connected", fail)
    one = peers()
    assert one.ask("name", within_s=LONG_S) == ""
    assert one.work(within_s=LONG_S) is None
    assert one.agree("vote", "word", within_s=LONG_S) is False


class Thread:
    """A thread that ends when it is waited for as long as it takes."""

    def __init__(self, clock: Clock, takes_s: float) -> None:
        self.clock, self.takes_s = clock, takes_s
        self.waited: list[float] = []

    def join(self, timeout: float) -> None:
        self.waited.append(timeout)
        self.clock.now_s += min(timeout, self.takes_s)


def test_closing_waits_for_all_threads_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.now)
    threads = [Thread(clock, takes_s) for takes_s in (1.5, 9.0, 9.0)]
    one = peers()
    one._threads = list(threads)  # type: ignore[arg-type]
    one.close(within_s=4.0)
    assert [thread.waited for thread in threads] == [[4.0], [2.5], [0.0]]
    assert one._closing.is_set()


def test_closing_waits_longer_than_a_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.now)
    one, thread = peers(), Thread(clock, 9.0)
    one._threads = [thread]  # type: ignore[list-item]
    one.close()
    assert thread.waited == [3.5]  # a call of the store ends after 3 s


def test_threads_hold_up_no_exit_and_are_forgotten(store: MemoryStore) -> None:
    one = peers()
    for _ in range(5):
        one.post("name", "word", within_s=LONG_S)
    assert len(one._threads) == 1
    assert all(thread.daemon for thread in one._threads)
    assert one._threads[0].name == "torchx-cubicml-peers"
