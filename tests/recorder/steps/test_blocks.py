from __future__ import annotations

from torchx_cubicml.recorder.steps.blocks import Block


def test_a_sum_of_blocks_sums_each_field() -> None:
    one = Block(
        seconds=1.0, steps=2, watched=2, samples=3.0, tokens=30.0, outside_s=0.25, eval_mode_s=0.5, eval_mode_steps=1,
        no_grad_s=0.125, no_grad_steps=2, checkpoint_s=4.0,
    )  # fmt: skip
    other = Block(
        seconds=2.0, steps=3, watched=1, samples=5.0, tokens=50.0, outside_s=0.5, eval_mode_s=1.5, eval_mode_steps=3,
        no_grad_s=0.5, no_grad_steps=5, checkpoint_s=8.0, compiled=True,
    )  # fmt: skip
    assert one + other == Block(
        seconds=3.0, steps=5, watched=3, samples=8.0, tokens=80.0, outside_s=0.75, eval_mode_s=2.0, eval_mode_steps=4,
        no_grad_s=0.625, no_grad_steps=7, checkpoint_s=12.0, compiled=True,
    )  # fmt: skip
    assert (other + one).compiled
    assert not (one + one).compiled
