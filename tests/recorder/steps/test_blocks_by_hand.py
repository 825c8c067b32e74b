"""Blocks of steps, merged and sampled by hand."""

from __future__ import annotations

import pytest

from torchx_cubicml.recorder.steps import blocks as module
from torchx_cubicml.recorder.steps.blocks import Block, Blocks


def step(seconds: float, **more: float) -> Block:
    return Block(seconds=seconds, **{"samples": 4.0, **more})


def test_a_step_by_default() -> None:
    assert Block(seconds=1.0) == Block(
        seconds=1.0,
        steps=1,
        watched=1,
        samples=None,
        tokens=None,
        outside_s=None,
        eval_mode_s=0.0,
        eval_mode_steps=0,
        no_grad_s=0.0,
        no_grad_steps=0,
        checkpoint_s=0.0,
        compiled=False,
    )


def test_what_one_watched_step_hides_is_unknown() -> None:
    known, hidden = Block(seconds=1.0, samples=4.0), Block(seconds=1.0)
    unwatched = Block(seconds=1.0, watched=0)
    assert (known + hidden).samples is None
    assert (hidden + known).samples is None
    assert (known + unwatched).samples == (unwatched + known).samples == 4.0
    assert (unwatched + unwatched).samples is None
    assert (known + unwatched).watched == 1


def test_the_latest_sixteen_have_a_median() -> None:
    made = Blocks()
    for number in range(15):
        made.add(step(float(number)))
    assert made.recent_s() is None
    made.add(step(15.0))
    assert made.recent_s() == 7.5
    made.add(step(16.0))
    assert made.recent_s() == 8.5


def test_blocks_are_merged_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BLOCKS", 4)
    made = Blocks()
    for number in range(1, 4):
        made.add(step(float(number)))
    assert [block.seconds for block in made.all()] == [1.0, 2.0, 3.0]
    assert made.sampled_steps() == []
    made.add(step(4.0))
    assert [(block.steps, block.seconds) for block in made.all()] == [(2, 3.0), (2, 7.0)]
    made.add(step(5.0))
    assert [(block.steps, block.seconds) for block in made.all()] == [(2, 3.0), (2, 7.0), (1, 5.0)]
    for number in range(6, 9):
        made.add(step(float(number)))
    assert [(block.steps, block.seconds) for block in made.all()] == [(4, 10.0), (4, 26.0)]
    for number in range(9, 100):
        made.add(step(float(number)))
        assert len(made.all()) <= 4
        assert sum(block.steps for block in made.all()) == made.steps == number
        assert sum(block.seconds for block in made.all()) == sum(range(1, number + 1))
    made.all().clear()
    made.sampled_steps().clear()
    assert len(made.all()) > 0
    assert len(made.sampled_steps()) == 4


def test_all_steps_are_as_likely_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 steps 16 are kept: with 400 runs, each is kept 100 times, with a standard deviation of 8.7."""
    monkeypatch.setattr(module, "MOST_BLOCKS", 16)
    kept = [0] * 64
    for seed in range(400):
        made = Blocks()
        made._random.seed(seed)
        for number in range(64):
            made.add(step(number + 1.0))
        sample = [int(block.seconds) - 1 for block in made.sampled_steps()]
        assert len({*sample}) == 16
        for number in sample:
            kept[number] += 1
    assert min(kept) > 100 - 5 * 8.7
    assert max(kept) < 100 + 5 * 8.7
    assert sum(kept[:16]) == pytest.approx(1600, abs=5 * 8.7 * 4)
