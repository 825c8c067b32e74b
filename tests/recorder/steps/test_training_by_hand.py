"""When a training is looked at in full, when it is reported, and which steps count: step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps import step_times
from torchx_cubicml.recorder.steps.deferred_hooks import DeferredForwardHook, make_step_hook
from torchx_cubicml.recorder.steps.optimizer_changes import has_nonzero_rate
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, NO_GRAD
from torchx_cubicml.recorder.steps.step_clock import HostClock
from torchx_cubicml.recorder.steps.training import Training
from torchx_cubicml.recorder.steps.trainings import Coverage

if TYPE_CHECKING:
    from torch.optim import Optimizer

STEP_S = 0.125


class Loop:
    """A training loop with a clock of its own; ``looks`` are the steps that were observed in full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.time, self.step_s = 0.0, STEP_S

        def clock() -> HostClock:
            made = HostClock()
            made.now = lambda: self.time
            return made

        monkeypatch.setattr(step_times, "make_clock", clock)
        self.training = Training(bare, world_size=more.pop("world_size", 1), **more)
        self.model: nn.Module = nn.Linear(8, 2)
        self.optimizer: Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.done = 0
        self.looks: list[int] = []
        self.news: list[int] = []
        self._hook = make_step_hook(self.training.notes, self._look, bare)

    def _look(self, optimizer: Optimizer, *_: object) -> None:
        self.looks.append(self.done)
        if self.training.step(optimizer):
            self.news.append(self.done)

    def step(self, *, batch: int = 4, calls: bool = True, optimizer: Optimizer | None = None) -> None:
        self.done += 1
        self.time += self.step_s
        forward = self.model if calls else self.model.forward
        forward(torch.zeros(batch, 8)).sum().backward()
        stepped = optimizer if optimizer is not None else self.optimizer
        stepped.step()
        self._hook(stepped, (), {})

    def steps(self, count: int, **more: Any) -> None:
        for _ in range(count):
            self.step(**more)

    @property
    def is_settled(self) -> bool:
        return any(isinstance(hook, DeferredForwardHook) for hook in self.model._forward_pre_hooks.values())


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_looks_get_rare_and_reports_rarer(loop: Loop) -> None:
    """Eight steps are seen in full, then two after each report, and one of 64 without any."""
    loop.steps(9)
    assert loop.is_settled
    loop.steps(300 - 9)
    assert loop.looks == [*range(1, 10), 16, 17, 32, 33, 64, 65, 128, 129, 193, 256, 257]
    assert loop.news == [2, 8, 16, 32, 64, 128, 256]
    assert loop.training.steps == 257
    loop.training.measurement()
    assert loop.training.steps == 300


def test_a_report_brings_the_full_hooks_back(loop: Loop) -> None:
    loop.steps(15)
    assert loop.is_settled
    loop.step()
    assert not loop.is_settled
    loop.step()
    assert loop.is_settled


def test_the_last_step_of_a_limit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, step_limit=40)
    loop.steps(40)
    assert loop.looks == [*range(1, 10), 16, 17, 32, 33, 40]
    assert loop.training.steps == 40


def test_without_forwards_steps_count_from_the_tenth_on(loop: Loop) -> None:
    counts = []
    for _ in range(14):
        loop.step(calls=False)
        counts.append(loop.training.steps)
    assert counts == [1] * 9 + [2, 3, 4, 5, 6]


def test_a_loaders_step_without_forwards_does_not_count(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] = 0.0
    loop.step(calls=False)
    assert loop.training.steps == 0
    loop.step(calls=False)
    assert loop.training.steps == 0
    loop.optimizer.param_groups[0]["lr"] = 0.1
    loop.steps(8, calls=False)
    assert loop.training.steps == 1


def test_a_model_called_late_is_found(loop: Loop) -> None:
    loop.steps(5, calls=False)
    loop.steps(5)
    assert loop.training.steps == 1 + 5
    loop.steps(20, calls=False)  # what runs now is no step of the model
    assert loop.training.steps == 1 + 5


@pytest.mark.parametrize(
    ("rates", "is_nonzero"),
    [
        ([0.0], False),
        ([0], False),
        ([0.0, 0.1], True),
        ([0.1, 0.0], True),
        ([torch.zeros(())], True),
        ([None], True),
        ([], False),
    ],
)
def test_a_rate_may_be_nonzero(rates: list[object], is_nonzero: bool) -> None:
    optimizer: Any = SimpleNamespace(param_groups=[{"lr": rate} for rate in rates])
    assert has_nonzero_rate(optimizer) is is_nonzero


def test_another_optimizer_is_followed_after_its_eighth_step(loop: Loop) -> None:
    loop.steps(3)
    adam = torch.optim.Adam(loop.model.parameters())
    loop.steps(7, optimizer=adam)
    assert loop.training.steps == 3
    loop.steps(1, optimizer=adam)
    assert loop.training.steps == 3
    loop.steps(2, optimizer=adam)
    assert loop.training.steps == 5
    assert loop.training.facts()["optimizer"] == "SGD"  # of the longest training
    loop.steps(2, optimizer=adam)
    assert loop.training.facts()["optimizer"] == "Adam"


def test_of_nearly_equal_trainings_the_first_is_reported(loop: Loop) -> None:
    loop.steps(4)
    adam = torch.optim.Adam(loop.model.parameters())
    loop.steps(8 + 4, optimizer=adam)
    assert loop.training.facts()["optimizer"] == "SGD"
    loop.step(optimizer=adam)
    assert loop.training.facts()["optimizer"] == "Adam"
    assert loop.training.steps == 9
    assert loop.training.coverage == Coverage(number=2, trainings=2, steps=5, all_steps=9)


def test_the_training_that_took_the_most_time_is_reported(loop: Loop) -> None:
    loop.steps(40)
    loop.step_s *= 8
    loop.steps(15 + 10, optimizer=torch.optim.Adam(loop.model.parameters()), batch=2)
    loop.training.conclude()
    facts = loop.training.facts()
    assert (facts["optimizer"], facts["micro_batch_size"]) == ("Adam", 2)
    assert (facts["trainings"], facts["measured_training"]) == (2, 2)
    assert loop.training.measurement().samples_per_second == pytest.approx(2 / loop.step_s)


def test_a_training_without_a_steady_state_is_not_reported(loop: Loop) -> None:
    loop.steps(40)
    kept, loop.model = loop.model, nn.Linear(8, 3)
    loop.optimizer, loop.step_s = torch.optim.SGD(loop.model.parameters(), lr=0.1), 100.0
    loop.steps(5, batch=2)
    loop.training.conclude()
    assert kept is not loop.model
    facts, measured = loop.training.facts(), loop.training.measurement()
    assert (facts["micro_batch_size"], facts["measured_training"], facts["trainings"]) == (4, 1, 2)
    assert measured.samples_per_second == pytest.approx(4 / STEP_S)


def test_a_first_training_without_a_steady_state_gives_way(loop: Loop) -> None:
    loop.step_s = 100.0
    loop.steps(3)
    loop.model = nn.Linear(8, 3)
    loop.optimizer, loop.step_s = torch.optim.SGD(loop.model.parameters(), lr=0.1), STEP_S
    loop.steps(20, batch=2)
    assert loop.training.facts()["measured_training"] == 2
    assert loop.training.measurement().samples_per_second == pytest.approx(2 / STEP_S)


def test_one_stall_makes_no_training_long(loop: Loop) -> None:
    loop.steps(6)
    loop.time += 1000.0  # a compilation, say
    loop.steps(6)
    loop.steps(8 + 30, optimizer=torch.optim.Adam(loop.model.parameters()))
    assert loop.training.facts()["optimizer"] == "Adam"


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "gone"])
def test_other_batches_under_a_new_optimizer_are_another_training(loop: Loop, is_kept: bool) -> None:
    """A pre-training, then a fine-tuning of the same model."""
    loop.steps(30, batch=16)
    kept = [loop.optimizer] * is_kept
    loop.step_s *= 4
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    loop.steps(40, batch=2)
    loop.training.conclude()
    assert len(kept) == is_kept
    facts, measured = loop.training.facts(), loop.training.measurement()
    assert (facts["micro_batch_size"], facts["measured_training"], facts["trainings"]) == (2, 2, 2)
    assert measured.samples_per_second == pytest.approx(2 / loop.step_s)
    assert measured.is_steady


@pytest.mark.parametrize("sizes", [[4], [4, 1], [4, 4, 4, 4, 1], [*range(1, 9)]], ids=str)
def test_epochs_with_an_optimizer_each_are_one_training(loop: Loop, sizes: list[int]) -> None:
    for _ in range(12):
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
        for size in sizes:
            loop.step(batch=size)
    loop.training.conclude()
    assert loop.training.coverage.trainings == 1
    assert loop.training.coverage.text() == ""
    assert not {"trainings", "measured_training"} & loop.training.facts().keys()
    assert loop.training.steps == 12 * len(sizes)


def test_a_batch_that_grows_within_one_training_stays_in_it(loop: Loop) -> None:
    loop.steps(20, batch=2)
    loop.steps(20, batch=4)
    assert loop.training.coverage.trainings == 1


@pytest.mark.parametrize("before", [4, 30], ids=["seen in full", "noted"])
@pytest.mark.parametrize(
    ("count", "turns", "trainings"),
    [(4, 0, 2), (1, 0, 1), (4, 4, 1)],
    ids=["short", "one step may be anything", "takes turns"],
)
def test_a_training_too_short_to_be_followed_is_counted(
    loop: Loop, before: int, count: int, turns: int, trainings: int
) -> None:
    loop.steps(before)
    adam = torch.optim.Adam(loop.model.parameters())
    for _ in range(turns):
        loop.steps(count, optimizer=adam)
        loop.steps(1)
    loop.steps(count, optimizer=adam)
    loop.training.conclude()
    all_steps = before + turns + count * (trainings > 1)
    expected = Coverage(number=1, trainings=trainings, steps=before + turns, all_steps=all_steps)
    assert loop.training.coverage == expected


def test_folds_are_one_of_several(loop: Loop) -> None:
    for _ in range(12):
        loop.model = nn.Linear(8, 2)
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
        loop.steps(20)
    loop.training.conclude()
    coverage = loop.training.coverage
    assert (coverage.number, coverage.trainings) == (1, 12)
    assert coverage.text().startswith("12 trainings ran one after the other; the record measures number 1: 20 of the ")


def test_explicit_steps_begin_the_count_anew(loop: Loop) -> None:
    loop.steps(5)
    adam = torch.optim.Adam(loop.model.parameters())
    loop.steps(8 + 2, optimizer=adam)
    assert loop.training.steps == 7
    due = []
    for _ in range(9):
        loop.time += STEP_S
        due.append(loop.training.record_step(10.0, 100.0))
    assert (loop.training.steps, due) == (9, [False] * 7 + [True, False])
    assert not loop.model._forward_pre_hooks
    loop.steps(5)
    assert loop.training.steps == 9
    measured = loop.training.measurement()
    assert measured is not None
    assert measured.samples_per_second == pytest.approx(10.0 / STEP_S)
    assert measured.may_include_evaluation


def test_explicit_steps_wait_for_the_facts(loop: Loop) -> None:
    loop.training.record_step(10.0, None)
    loop.step()
    assert loop.model._forward_pre_hooks
    loop.step()
    assert loop.training.facts()["micro_batch_size"] == 4
    assert not loop.model._forward_pre_hooks
    assert loop.news == [2]
    assert loop.training.steps == 1


def test_many_explicit_steps_take_bounded_memory(loop: Loop) -> None:
    for _ in range(200):
        loop.time += STEP_S
        loop.training.record_step(1.0, None)
    clock: Any = loop.training._times.clock()
    assert len(clock._steps) == 200 - 3 * 64


@pytest.mark.parametrize(("requested", "tells"), [(3, True), ("3", False)])
def test_the_requested_batch_tells_the_dimension(
    requested: object, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(monkeypatch, requested={"micro_batch_size": requested})

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    loop.model = Second()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    for _ in range(2):
        loop.model(torch.zeros(5, 3, 8)).sum().backward()
        loop.training.step(loop.optimizer)
    assert loop.training.facts()["micro_batch_size"] == (3 if tells else 5)


def test_ranks_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, world_size=3)
    loop.steps(8)
    assert loop.training.work_of_this_rank() == (4.0, None)
    assert loop.training.facts()["global_batch_size"] == 12
    assert loop.training.measurement().samples_per_second == pytest.approx(12 / STEP_S)


def test_few_steps_have_no_work(loop: Loop) -> None:
    loop.steps(3)
    assert loop.training.work_of_this_rank() == (None, None)
    assert loop.training.measurement() is None


@pytest.mark.parametrize("is_found", [True, False])
def test_evaluation_is_known_of_a_model_that_was_found(is_found: bool, loop: Loop) -> None:
    loop.steps(20, calls=is_found)
    measured = loop.training.measurement()
    assert measured is not None
    assert measured.may_include_evaluation is not is_found
    assert measured.evaluation_s == (0.0 if is_found else None)
    loop.training._forwards.evaluation.has_missed = True
    assert loop.training.measurement().may_include_evaluation


def test_time_is_paused_by_what_is_no_step(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []
    monkeypatch.setattr(type(loop.training.pauses), "host_seconds", lambda self, kinds: asked.append(kinds))
    loop.steps(8)
    loop.training.paused_s()
    target = nn.Linear(8, 2)
    for _ in range(20):  # a target network in each step is part of the training
        loop.training.pauses.evaluate(in_training_mode=True)
        loop.step()
    loop.training.measurement()
    loop.training.paused_s()
    del target
    assert asked == [frozenset({CHECKPOINT, EVAL_MODE, NO_GRAD}), frozenset({CHECKPOINT, EVAL_MODE})]


def test_a_compiled_step_shows_at_the_next_forward(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx_cubicml.recorder.steps.training.UnhookedOptimizers.find", lambda self: loop.optimizer)
    heard: list[bool] = []
    loop.training.on_unhooked_step = heard.append
    loop.training.compiled()
    assert not loop.training._forwards.evaluation.may_hook

    def step() -> None:
        loop.time += STEP_S
        for _ in range(2):
            loop.model(torch.zeros(4, 8)).sum().backward()
        loop.optimizer.step()

    for _ in range(9):
        step()
    assert heard == [True] + [False] * 6 + [True]  # the facts, then the eighth step
    assert loop.training.steps == 8
    loop.training.conclude()
    assert (loop.training.steps, len(heard)) == (9, 8)
    facts, measured = loop.training.facts(), loop.training.measurement()
    assert (facts["micro_batch_size"], facts["gradient_accumulation_steps"]) == (4, 2)
    assert measured.samples_per_second == pytest.approx(8 / STEP_S)
    assert measured.share_outside_steps is None


def test_a_training_that_is_observed_needs_no_search(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[object] = []
    monkeypatch.setattr(
        "torchx_cubicml.recorder.steps.training.UnhookedOptimizers.find", lambda _: searches.append(None)
    )
    loop.training.compiled()
    assert len(searches) == 1
    loop.steps(2)
    loop.training.compiled()
    assert len(searches) == 1
    other = Loop(monkeypatch)
    other.training.record_step(1.0, None)
    other.training.compiled()
    assert len(searches) == 1


def test_steps_that_compile_are_warm_up(loop: Loop) -> None:
    loop.steps(3)
    loop.training.compiled()
    loop.steps(17)
    loop.training.measurement()
    assert [block.compiled for block in loop.training._times._blocks.all()] == [False] * 2 + [True] + [False] * 16
    loop.training.compiled()
    loop.steps(3)
    loop.training.measurement()
    assert [block.compiled for block in loop.training._times._blocks.all()][-3:] == [True, False, False]


def test_the_end_of_a_training_reads_what_was_noted(loop: Loop) -> None:
    loop.steps(40)
    assert loop.training.steps < 40
    loop.training.on_unhooked_step = print
    loop.training.conclude()
    assert (loop.training.steps, loop.training.notes.left, loop.training.on_unhooked_step) == (40, 0, None)
    assert not loop.model._forward_pre_hooks


def test_a_step_partly_seen_has_unknown_work(loop: Loop) -> None:
    loop.steps(20)
    assert loop.is_settled
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    loop.model(torch.zeros(4, 8)).sum().backward()  # noted
    loop.training.step(other)
    assert not loop.is_settled
    loop.step()
    loop.step()
    blocks = loop.training._times._blocks
    loop.training.measurement()
    assert [(block.watched, block.samples) for block in blocks.all()[-3:]] == [(1, 4), (0, None), (1, 4)]
    assert loop.training.steps == 22
    assert loop.training.measurement().samples_per_second == pytest.approx(4 / STEP_S)


@pytest.mark.parametrize("is_settled", [True, False])
def test_saving_belongs_to_the_next_step_that_counts(is_settled: bool, loop: Loop) -> None:
    loop.steps(20 if is_settled else 5)
    assert loop.is_settled is is_settled
    loop.training.pauses.saving(lambda: setattr(loop, "time", loop.time + 1.0))
    loop._hook(loop.optimizer, (), {})  # of a step without a forward
    loop.steps(3)
    loop.training.measurement()
    assert [block.checkpoint_s for block in loop.training._times._blocks.all()][-4:] == [0.0, 1.0, 0.0, 0.0]
