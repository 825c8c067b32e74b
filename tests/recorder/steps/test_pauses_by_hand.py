"""Pauses by clocks that the test itself sets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps import pauses as pauses_module
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, NO_GRAD, Pause, Pauses, paused_s

if TYPE_CHECKING:
    from collections.abc import Callable


class Watch:
    """Both clocks: that of the steps is ten times as fast."""

    def __init__(self) -> None:
        self.s = 0.0

    def host(self) -> float:
        return self.s

    def step(self) -> float:
        return 10 * self.s


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(pauses_module, "perf_counter", made.host)
    return made


@pytest.fixture
def pauses(watch: Watch) -> Pauses:
    made = Pauses(bare)
    made.begin(watch.step)
    return made


def evaluated(pauses: Pauses, watch: Watch, begin: float, end: float, *, in_training_mode: bool = False) -> None:
    watch.s = begin
    pauses.evaluate(in_training_mode=in_training_mode)
    watch.s = end
    pauses.train()


def saved(pauses: Pauses, watch: Watch, begin: float, end: float) -> None:
    watch.s = begin
    pauses.saving(lambda: setattr(watch, "s", end))


def in_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_new_recorder_has_seen_nothing() -> None:
    made = Pauses(bare)
    assert (made.kind, made.steps, made.is_usual, made.take()) == ("", 0, True, ())
    made.train()
    assert made.host_seconds(frozenset({EVAL_MODE}))(0.0, 9.0) == 0.0


def test_steps_are_counted_and_end_what_was_noted(pauses: Pauses, watch: Watch) -> None:
    pauses.is_usual = False
    pauses.evaluate(in_training_mode=True)
    assert pauses.kind == EVAL_MODE  # entered from elsewhere than in the step before
    pauses.drop()
    assert (pauses.kind, pauses.steps, pauses.is_usual) == ("", 1, True)
    pauses.drop()
    assert pauses.steps == 2
    evaluated(pauses, watch, 1.0, 2.0, in_training_mode=True)
    assert pauses.take() == (Pause(NO_GRAD, 10.0, 20.0),)


def test_nothing_is_noted_before_the_first_step(watch: Watch) -> None:
    early = Pauses(bare)
    early.evaluate(in_training_mode=False)
    assert early.kind == ""
    early.saving(lambda: early.begin(watch.step))  # the first step ends within it
    early.train()
    assert early.take() == ()
    saved(early, watch, 1.0, 2.0)
    assert early.take() == (Pause(CHECKPOINT, 10.0, 20.0),)


def test_pauses_are_of_the_thread_that_trains(pauses: Pauses, watch: Watch) -> None:
    assert pauses.is_in_its_thread
    in_another_thread(lambda: saved(pauses, watch, 1.0, 2.0))
    assert pauses.take() == ()
    in_another_thread(lambda: pauses.begin(watch.step))
    assert not pauses.is_in_its_thread
    saved(pauses, watch, 3.0, 4.0)
    assert pauses.take() == ()


def test_a_save_within_another_threads_call_is_whole(pauses: Pauses, watch: Watch) -> None:
    def save() -> None:
        in_another_thread(lambda: pauses.saving(lambda: None))
        saved(pauses, watch, 2.0, 3.0)
        watch.s = 4.0

    watch.s = 1.0
    pauses.saving(save)
    assert pauses.take() == (Pause(CHECKPOINT, 10.0, 40.0),)


def test_saving_belongs_to_the_evaluation_around_it(pauses: Pauses, watch: Watch) -> None:
    watch.s = 1.0
    pauses.evaluate(in_training_mode=False)
    saved(pauses, watch, 2.0, 3.0)
    watch.s = 5.0
    pauses.train()
    saved(pauses, watch, 6.0, 7.0)
    evaluated(pauses, watch, 8.0, 9.0)
    first, last = Pause(CHECKPOINT, 20.0, 30.0), Pause(CHECKPOINT, 60.0, 70.0)
    assert pauses.take() == (first, Pause(EVAL_MODE, 10.0, 50.0, (first,)), last, Pause(EVAL_MODE, 80.0, 90.0))


def test_pauses_put_back_come_first(pauses: Pauses, watch: Watch) -> None:
    kept = (Pause(EVAL_MODE, 1.0, 2.0), Pause(NO_GRAD, 3.0, 4.0))
    saved(pauses, watch, 5.0, 6.0)
    pauses.keep(kept)
    assert pauses.take() == (*kept, Pause(CHECKPOINT, 50.0, 60.0))


def test_a_settled_training_notes_pauses_itself(pauses: Pauses, watch: Watch) -> None:
    noted: list[Pause] = []
    pauses.add = noted.append
    saved(pauses, watch, 1.0, 2.0)
    assert (len(noted), pauses.take()) == (1, ())
    pauses.note_alone()
    saved(pauses, watch, 1.0, 2.0)
    assert (len(noted), len(pauses.take())) == (1, 1)


@pytest.mark.parametrize(
    ("begin", "end", "seconds"),
    [
        (0.0, 20.0, 6.0),
        (0.0, 1.0, 0.0),
        (1.0, 2.0, 1.0),
        (1.5, 2.5, 1.0),
        (3.0, 4.0, 1.0),
        (4.0, 5.5, 0.5),
        (5.0, 6.0, 0.0),
        (7.5, 8.5, 0.5),
        (9.0, 20.0, 1.0),
        (10.0, 20.0, 0.0),
    ],
)
def test_host_seconds_count_what_overlaps_once(
    begin: float, end: float, seconds: float, pauses: Pauses, watch: Watch
) -> None:
    """Pauses last from 1 to 4, with a save within, on to 4.5 by one that begins as it ends, then 8 to 9.5 and 10."""
    watch.s = 1.0
    pauses.evaluate(in_training_mode=False)
    saved(pauses, watch, 2.0, 3.0)
    watch.s = 4.0
    pauses.train()
    saved(pauses, watch, 4.0, 4.5)
    evaluated(pauses, watch, 8.0, 9.5)
    saved(pauses, watch, 9.0, 10.0)
    evaluated(pauses, watch, 11.0, 19.0, in_training_mode=True)  # of a kind that is not asked for
    spent = pauses.host_seconds(frozenset({EVAL_MODE, CHECKPOINT}))
    assert spent(begin, end) == pytest.approx({6.0: 5.5, 0.5: 0.5}.get(seconds, seconds))
    both = pauses.host_seconds(frozenset({CHECKPOINT}))
    assert both(0.0, 20.0) == pytest.approx(1.0 + 0.5 + 1.0)


def elapsed(begin: float, end: float) -> float:
    return end - begin


def test_paused_seconds_of_one_step() -> None:
    save = Pause(CHECKPOINT, 2.0, 3.0)
    pauses = (save, Pause(EVAL_MODE, 1.0, 5.0, (save,)), Pause(EVAL_MODE, 6.0, 7.0), Pause(NO_GRAD, 8.0, 10.0))
    found = paused_s(pauses, elapsed)
    assert found == {
        "eval_mode_s": 4.0,
        "eval_mode_steps": True,
        "no_grad_s": 2.0,
        "no_grad_steps": True,
        "checkpoint_s": 1.0,
    }
    unwatched = paused_s(pauses, elapsed, is_watched=False)
    assert unwatched == {**found, "eval_mode_steps": False, "no_grad_steps": False}
    assert paused_s((), elapsed) == {}


def test_a_pause_never_takes_less_than_no_time() -> None:
    inner = Pause(CHECKPOINT, 0.0, 5.0)  # clocks of devices err
    found = paused_s((Pause(EVAL_MODE, 1.0, 3.0, (inner,)), Pause(NO_GRAD, 3.0, 3.5)), elapsed)
    assert (found["eval_mode_s"], found["no_grad_s"], found["checkpoint_s"]) == (0.0, 0.5, 0.0)
