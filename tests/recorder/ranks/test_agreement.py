from __future__ import annotations

import time

import pytest

from tests.recorder.ranks.stores import Clock, MemoryStore
from torchx_cubicml.recorder.ranks.agreement import Verdict, key_prefix, vote_unanimously
from torchx_cubicml.settings import JobEnvironment, read_job_environment


def job(rank: int = 0, world_size: int = 2, attempt: int = 0) -> JobEnvironment:
    variables = {"RANK": rank, "WORLD_SIZE": world_size, "TORCHELASTIC_RESTART_COUNT": attempt}
    return read_job_environment({name: str(value) for name, value in variables.items()})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.now)
    monkeypatch.setattr(time, "sleep", made.sleep)
    return made


def vote(store: MemoryStore, rank: int, word: str, *, until: float, world_size: int = 2) -> tuple[bool, bool]:
    """Return the verdict, and whether the others could rely on this rank."""
    came: list[bool] = []
    question, comes = ("files", word), lambda: came.append(True)
    return vote_unanimously(store, job(rank, world_size), question, until=until, comes=comes), bool(came)  # type: ignore[arg-type]


def test_each_attempt_has_its_own_keys() -> None:
    keys = {key_prefix(job(rank, attempt=attempt)) for rank in range(2) for attempt in range(2)}
    assert len(keys) == 2
    assert all(key.startswith("torchx_cubicml/") and key.endswith("/") for key in keys)


def test_the_first_verdict_stays() -> None:
    verdict = Verdict(MemoryStore(), "key")  # type: ignore[arg-type]
    assert verdict.value == ""
    assert [verdict.decide("no"), verdict.decide("yes"), verdict.value] == ["no"] * 3


@pytest.mark.parametrize("at_s", [0.0, 1.5, 2.0, 3.0], ids=["before", "while waiting", "at the end", "too late"])
def test_a_verdict_is_waited_for(at_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    verdict = Verdict(store, "key")  # type: ignore[arg-type]
    clock = Clock({at_s: lambda: store.set("key", "yes")})
    clock.sleep(0.0)
    monkeypatch.setattr(time, "monotonic", clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    answer = verdict.wait(until=clock.now_s + 2.0, otherwise="no", pause_s=0.5)
    assert [answer, verdict.value] == ["yes" if at_s <= 2.0 else "no"] * 2
    assert clock.now_s == 100.0 + min(at_s, 2.5)


def test_a_verdict_is_looked_for_often(clock: Clock) -> None:
    assert Verdict(MemoryStore(), "key").wait(until=clock.now_s + 1.0, otherwise="no") == "no"  # type: ignore[arg-type]
    assert max(clock.slept) < 0.1


def test_all_ranks_with_one_word_agree(clock: Clock) -> None:
    store = MemoryStore()
    assert vote(store, 0, "can", until=clock.now_s - 1.0, world_size=1) == (True, True)
    store = MemoryStore()
    clock = Clock({0.5: lambda: vote(store, 1, "can", until=0.0)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock.now)
        patch.setattr(time, "sleep", clock.sleep)
        assert vote(store, 0, "can", until=clock.now_s + 2.0) == (True, True)
    assert clock.now_s < 101.0
    assert vote(store, 1, "", until=clock.now_s) == (True, False)  # the verdict is written already


def test_a_missing_rank_is_a_veto(clock: Clock) -> None:
    store = MemoryStore()
    assert vote(store, 0, "can", until=clock.now_s + 2.0) == (False, True)
    assert 102.0 < clock.now_s < 102.1
    assert vote(store, 1, "can", until=clock.now_s + 2.0) == (False, False)
    assert clock.now_s < 102.1


@pytest.mark.parametrize("word", ["", "other"], ids=["empty", "another"])
def test_another_word_is_a_veto_at_once(word: str, clock: Clock) -> None:
    store = MemoryStore()
    store.set(f"{key_prefix(job())}files/word", "can")
    assert vote(store, 1, word, until=clock.now_s + 2.0) == (False, False)
    assert vote(store, 0, "can", until=clock.now_s + 2.0) == (False, False)
    assert clock.now_s == 100.0


def test_a_rank_that_votes_again_counts_once(clock: Clock) -> None:
    store = MemoryStore()
    clock = Clock({0.5: lambda: vote(store, 0, "can", until=1000.0)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock.now)
        patch.setattr(time, "sleep", clock.sleep)
        assert not vote(store, 0, "can", until=clock.now_s + 2.0)[0]


def test_questions_are_apart(clock: Clock) -> None:
    store = MemoryStore()
    assert not vote(store, 0, "", until=clock.now_s)[0]
    other = vote_unanimously(store, job(world_size=1), ("more", "can"), until=clock.now_s, comes=lambda: None)  # type: ignore[arg-type]
    assert other
