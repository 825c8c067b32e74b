"""Communication that computation hides, and the methods of context parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.data_parallel import gathering
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.model_parallel import context_parallel, tensor_parallel
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

ROW: dict[str, Value] = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14336,
    "seq_len": 32768,
    "vocab_size": 0,
    "zero_stage": 0,
    "attention_kernel": "flash",
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "world_size": 64,
    "device": "NVIDIA H100 80GB HBM3",
}


def layout_of(**changes: Value) -> TrainingLayout:
    return TrainingLayout.of(Facts.from_rows([{**ROW, **changes}]))


@given(
    tp=st.sampled_from([1, 2, 8]),
    cp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 4]),
    strategy=st.sampled_from(["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]),
    overlaps=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_what_is_hidden_is_not_negative_and_not_in_the_step(
    tp: int, cp: int, pp: int, strategy: str, overlaps: bool
) -> None:
    if tp * cp * pp > 64:
        return
    facts: dict[str, Value] = {"tp_degree": tp, "cp_degree": cp, "pp_degree": pp, "sharding_strategy": strategy}
    times = step_time(layout_of(**facts, tp_overlap=overlaps), DEFAULTS)
    assert all(seconds[0] >= -1e-12 for seconds in times.hidden.values())
    assert sum(times.parts().values())[0] == pytest.approx(times.total()[0])
    if tp == 1:
        assert times.hidden["tensor_parallel"][0] == 0.0
    if cp == 1:
        assert times.hidden["context_parallel"][0] == 0.0


def test_one_rank_communicates_nothing() -> None:
    times = step_time(layout_of(world_size=1), DEFAULTS)
    parts = times.parts()
    names = [name for name in parts if name.endswith("_parallel")]
    assert [parts[name][0] for name in names] == [0.0] * len(names)
    assert [seconds[0] for seconds in times.hidden.values()] == [0.0] * len(times.hidden)


def test_overlapped_tensor_parallelism_hides_all_but_one_part() -> None:
    plain, asked = layout_of(tp_degree=8), layout_of(tp_degree=8, tp_overlap=True)
    every, exposed = tensor_parallel(plain, DEFAULTS, np.array([1e3]))
    assert exposed[0] == every[0]
    assert tensor_parallel(asked, DEFAULTS, np.array([1e3]))[1][0] == pytest.approx(every[0] / 8)
    assert tensor_parallel(asked, DEFAULTS, np.zeros(1))[1][0] == every[0]


def test_a_trainer_told_not_to_overlap_exposes_its_reduction() -> None:
    usual, apart = (step_time(layout_of(overlap_communication=on), DEFAULTS) for on in (True, False))
    assert usual.hidden["data_parallel"][0] > 0.0
    assert apart.hidden["data_parallel"][0] == 0.0
    whole = usual.parts()["data_parallel"][0] + usual.hidden["data_parallel"][0]
    assert apart.parts()["data_parallel"][0] == pytest.approx(whole)


def test_a_long_sequence_hides_its_ring_and_no_other_method() -> None:
    for length, hides in ((2048, False), (524_288, True)):
        every, exposed = context_parallel(layout_of(cp_degree=8, seq_len=length), DEFAULTS)
        assert bool(exposed[0] < 0.5 * every[0]) is hides
        for method in ("all_gather", "a2a"):
            every, exposed = context_parallel(layout_of(cp_degree=8, seq_len=length, cp_method=method), DEFAULTS)
            assert exposed[0] == every[0] > 0.0


def test_heads_are_exchanged_for_fewer_bytes_the_more_ranks_there_are() -> None:
    """Each rank sends a share of its own part: as its part shrinks, so do the bytes (DeepSpeed-Ulysses)."""
    free = {**DEFAULTS, "link_tp_latency_s": 1e-12, "network_tp_latency_s": 1e-12}
    few, many = (context_parallel(layout_of(cp_degree=degree, cp_method="ulysses"), free)[1][0] for degree in (2, 8))
    assert many == pytest.approx(few * (7 / 8 / 8) / (1 / 2 / 2))


def test_gathered_keys_are_as_many_bytes_as_those_of_a_ring() -> None:
    free = {**DEFAULTS, "link_tp_latency_s": 1e-12}
    ring, gathered = (
        context_parallel(layout_of(cp_degree=4, cp_method=method), free)[0][0] for method in ("p2p", "all_gather")
    )
    assert gathered == pytest.approx(ring)


def test_gradients_are_reduced_over_context_parallel_ranks_as_well() -> None:
    plain, split = layout_of(world_size=8), layout_of(world_size=8, cp_degree=8)
    reduced = [step_time(each, DEFAULTS).parts()["data_parallel"][0] for each in (plain, split)]
    assert reduced[1] > 0.0
    assert layout_of(world_size=8, cp_degree=8, zero_stage=1).shard[0] == 8


def test_the_hidden_seconds_of_a_row() -> None:
    row = {**ROW, "sharding_strategy": "FULL_SHARD"}
    assert Roofline().hidden(row)["data_parallel"] > 0.0
    assert Roofline().hidden({"n_layers": 2}) == {}


def test_a_pipeline_reduces_its_gradients_once_a_step() -> None:
    """Gathering for each pass stays; with parameters kept after forward, nothing is left for each micro batch."""
    facts: dict[str, Value] = {"pp_degree": 4, "gradient_accumulation_steps": 32}
    kept, freed, alone = (
        layout_of(**{**facts, "sharding_strategy": strategy, **changes})
        for strategy, changes in (("SHARD_GRAD_OP", {}), ("FULL_SHARD", {}), ("SHARD_GRAD_OP", {"pp_degree": 1}))
    )
    assert [float(each.gradients_sharded[0]) for each in (kept, freed, alone)] == [0.0, 0.0, 1.0]
    free, stage = {**DEFAULTS, "dp_latency_s": 1e-15}, np.array([1.0])
    of_kept, of_freed = (float(gathering(each, free, stage)[0][0]) for each in (kept, freed))
    assert of_freed == pytest.approx(of_kept * (2 + 1 / 32) / (2 / 32))
