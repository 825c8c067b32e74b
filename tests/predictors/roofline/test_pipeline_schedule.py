from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.pipeline_schedule import schedule_kind
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

SCHEDULES = ("1F1B", "GPipe", "Interleaved1F1B", "ZB-H1", "ZB-H2", "ZBVZeroBubble", "DualPipe", "DualPipeV")
ROW: dict[str, Value] = {"n_layers": 64, "d_model": 1024, "seq_len": 1024, "micro_batch_size": 1, "world_size": 64}


def of(name: str, *schedules: str, stages: int = 8, **facts: Value) -> list[float]:
    rows = [
        {**ROW, "pp_degree": stages, "gradient_accumulation_steps": 64, "pp_schedule": each, **facts}
        for each in schedules
    ]
    return [float(value) for value in getattr(TrainingLayout.of(Facts.from_rows(rows)), name)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1F1B", "1f1b"),
        ("Schedule1F1B", "1f1b"),
        ("ScheduleInterleaved1F1B", "1f1b"),
        ("someone's own", "1f1b"),
        ("all_forward_all_backward", "all forward"),
        ("LoopedBFS", "all forward"),
        ("zb1p", "zero bubble"),
        ("ZB2P", "zero bubble, twice the memory"),
        ("ZBVZeroBubble", "zero bubble, v"),
        ("DualPipe", "dual"),
        ("ScheduleDualPipeV", "dual, v"),
    ],
)
def test_schedules_are_known_by_the_names_of_papers_and_of_pytorch(text: str, kind: str) -> None:
    assert schedule_kind(text) == kind


@given(stages=st.sampled_from([2, 4, 8, 16, 32]), recomputes=st.booleans())
@settings(max_examples=20, deadline=None)
def test_no_zero_bubble_is_above_1f1b(stages: int, recomputes: bool) -> None:
    word = "full" if recomputes else "none"
    plain, *others = of("bubble", *SCHEDULES, stages=stages, activation_checkpointing=word)
    assert plain == 1.0
    assert all(0.0 <= other <= plain for other in others)


@pytest.mark.parametrize("chunks", [2, 3, 8])
def test_chunks_divide_the_bubble(chunks: int) -> None:
    assert of("bubble", "1F1B", virtual_pp_degree=chunks) == [pytest.approx(1 / chunks)]
    assert of("bubble", "ZB-H1", virtual_pp_degree=chunks) == [pytest.approx(1 / 3 / chunks)]


def test_the_published_bubbles() -> None:
    """Of eight stages, with F = W = 1 and B = 2; 1F1B leaves 7 x 3."""
    found = [each * 21 for each in of("bubble", *SCHEDULES)]
    assert found == pytest.approx([21, 21, 10.5, 7, 0, 0, 3 * 2, 7])


def test_the_published_memory() -> None:
    """Micro batches that the fullest of eight stages holds, of 64."""
    found = of("in_flight", *SCHEDULES)
    assert found == pytest.approx([8, 64, 8 * (1 + 7 / 16), 8, 15, 8, 9, 9])
    assert of("param_copies", *SCHEDULES) == [1, 1, 1, 1, 1, 1, 2, 1]


def test_a_stage_holds_no_more_than_there_are() -> None:
    assert set(of("in_flight", *SCHEDULES, gradient_accumulation_steps=3)) == {3}


def test_a_row_is_read_alike_beside_other_schedules() -> None:
    alone = [of("bubble", each)[0] for each in SCHEDULES]
    assert of("bubble", *SCHEDULES) == alone
