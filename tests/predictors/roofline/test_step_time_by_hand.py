"""Each part of a step's time, worked out by hand from a layout of round numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from torchx_cubicml.predictors.roofline.computation import (
    attention_flops,
    balanced_stage,
    compute,
    elementwise_bytes,
    flops_per_second,
)
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.data_parallel import dp_bandwidth, gathering, optimizer, reduction
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.mixture_of_experts import expert_parallel
from torchx_cubicml.predictors.roofline.model_parallel import (
    context_parallel,
    pipeline_transfer,
    tensor_parallel,
    tp_contention,
)
from torchx_cubicml.predictors.roofline.smooth import smooth_excess, smooth_maximum
from torchx_cubicml.predictors.roofline.step_time import StepTime, step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

BASE = TrainingLayout.of(
    Facts.from_rows(
        [
            {
                "n_layers": 12,
                "d_model": 1024,
                "seq_len": 512,
                "micro_batch_size": 4,
                "gradient_accumulation_steps": 6,
                "world_size": 8,
                "vocab_size": 0,
                "zero_stage": 0,
                "attention_kernel": "flash",
                "device": "NVIDIA H100 80GB HBM3",
            }
        ]
    )
)


def layout_of(**numbers: float) -> SimpleNamespace:
    """Return a stand-in for a layout: what others derive from its numbers can be chosen here, too."""
    known = {name: getattr(BASE, name) for name in dir(BASE) if isinstance(getattr(BASE, name), np.ndarray)}
    return SimpleNamespace(**{**known, **{name: np.array([float(number)]) for name, number in numbers.items()}})


def constants_of(**numbers: float) -> dict[str, float]:
    return {**DEFAULTS, **numbers}


LINKS = {"tp": 1, "cp": 1, "ep": 1, "per_node": 8, "link": 100.0, "network": 10.0, "world": 8, "width_bytes": 2}
RATES = constants_of(
    link_tp=0.5,
    network_tp=0.25,
    link_tp_latency_s=3.0,
    network_tp_latency_s=7.0,
    link_dp=0.4,
    network_dp=0.2,
    network_dp_rails=0.5,
    network_dp_hops=2.0,
    network_tp_hops=2.0,
    dp_latency_s=0.25,
    pp_bandwidth=0.5,
    pp_latency_s=11.0,
)


NOTHING = np.zeros(1)


class TestFlops:
    LAYOUT = {"tokens": 100, "width": 80, "tp": 2, "peak": 1000.0, "low_bit": 0, "compiled": 0}  # noqa: RUF012
    CONSTANTS = constants_of(half_tokens=300.0, half_width=10.0, gemm_efficiency=0.5, low_bit=1.5, compiled=1.2)

    @pytest.mark.parametrize(
        ("changes", "factor"),
        [({}, 1.0), ({"low_bit": 1}, 1.5), ({"compiled": 1}, 1.2), ({"low_bit": 1, "compiled": 0.5}, 1.5 * 1.2**0.5)],
    )
    def test_efficiency_falls_with_few_tokens_and_slices(self, changes: dict[str, float], factor: float) -> None:
        """100 of 400 tokens, and 40 of 50 channels."""
        (found,) = flops_per_second(layout_of(**{**self.LAYOUT, **changes}), self.CONSTANTS)
        assert found == pytest.approx(1000.0 * 0.5 * (100 / 400) * (40 / 50) * factor)

    def test_a_device_that_reaches_more_of_its_peak_is_faster(self) -> None:
        """Products reach 86.9 % of the peak on an A100 and 80.3 % on an H100."""
        h100, a100 = (
            flops_per_second(layout_of(**self.LAYOUT, matmul_share=share), self.CONSTANTS) for share in (0.803, 0.869)
        )
        assert a100 == pytest.approx(h100 * 0.869 / 0.803)


class TestCompute:
    NUMBERS = {  # noqa: RUF012 - never changed
        "width": 10,
        "sequence": 20,
        "active_params": 50,
        "full_recompute": 0,
        "selective_recompute": 0,
        "vocabulary": 3,
        "tokens": 7,
        "tp": 2,
        "layers": 8,
        "layers_per_stage": 8,
        "pp": 1,
        "peak": 1000.0,
        "attention_peak": 1000.0,
        "low_bit": 0,
        "compiled": 0,
        "plain_attention": 0,
        "width_bytes": 2,
        "heads": 5,
        "memory_bandwidth": 40.0,
        "inner": 8,
        "kv_share": 1,
        "queries": 1,
    }
    CONSTANTS = constants_of(
        half_tokens=0.0,
        half_width=0.0,
        gemm_efficiency=0.5,
        attention_efficiency=0.7,
        unbalance=0.0,
        plain_attention=0.25,
        elementwise=0.0,
    )

    def seconds(self, constants: dict[str, float] | None = None, **changes: float) -> tuple[float, float]:
        stage, whole = compute(layout_of(**{**self.NUMBERS, **changes}), constants or self.CONSTANTS)
        return float(stage[0]), float(whole[0])

    def test_a_step_is_its_layers_and_the_head(self) -> None:
        block, head = 6 * 50 + 7 * 10 * 20 / 0.7, 6 * 10 * 3
        expected = (8 * block + head) * 7 / (2 * 500.0)
        assert self.seconds() == pytest.approx((expected, expected))

    def test_recomputation_repeats_a_third(self) -> None:
        head = 6 * 10 * 3
        full = 6 * 50 * (1 + 0.5 / 3) + 2000 * (1 + 0.5 / 3)
        assert self.seconds(full_recompute=0.5)[1] == pytest.approx((8 * full + head) * 7 / 1000)
        selective = 6 * 50 + 2000 * (1 + 0.5 / 3)  # attention alone
        assert self.seconds(selective_recompute=0.5)[1] == pytest.approx((8 * selective + head) * 7 / 1000)

    def test_plain_attention_writes_its_scores_to_memory(self) -> None:
        (stage, whole), (without, all_without) = self.seconds(plain_attention=1, layers_per_stage=4), self.seconds()
        again = 10 * 20 / 0.7 * 7 / 1000  # of the scores in backward, by a fused kernel
        scores = 0.25 * 16 * 2 * 5 * 20 * 7 / 2 / 40.0 - again
        assert whole - all_without == pytest.approx(8 * scores)
        assert self.seconds(layers_per_stage=4)[0] == pytest.approx(without)
        assert stage - without == pytest.approx(4 * (scores + again) - 8 * again)

    @pytest.mark.parametrize(("low_bit", "factor"), [(0, 1.0), (1, 1.5 * 1000 / 400)])
    def test_attention_keeps_its_format_where_products_are_in_fp8(self, low_bit: int, factor: float) -> None:
        layout = layout_of(**{**self.NUMBERS, "low_bit": low_bit, "attention_peak": 400.0})
        (found,) = attention_flops(layout, {**self.CONSTANTS, "low_bit": 1.5})
        assert found == pytest.approx(2000 * factor)

    @pytest.mark.parametrize(("peak", "slower"), [(100e12, 1.0), (312e12, 1.0), (1248e12, 2.0)])
    def test_attention_reaches_less_of_the_peak_of_a_newer_device(self, peak: float, slower: float) -> None:
        """Of one that is four times as fast as an A100, half, if the power is a half; of an older one as much."""
        layout = layout_of(**{**self.NUMBERS, "attention_peak": peak})
        (found,) = attention_flops(layout, {**self.CONSTANTS, "attention_lag": 0.5})
        assert found == pytest.approx(2000 * slower)

    @pytest.mark.parametrize(("recomputed", "again"), [(0.0, 1.0), (1.0, 4 / 3)])
    def test_other_operations_pass_their_tensors_through_memory(self, recomputed: float, again: float) -> None:
        """34 bytes per token and channel are kept, of which ranks without sequence parallelism hold 10 in full."""
        constants = {**self.CONSTANTS, "elementwise": 2.0}
        layout = layout_of(**{**self.NUMBERS, "full_recompute": recomputed, "sequence_parallel": 0})
        moved = 2.0 * 7 * 10 * (24 / 2 + 10) * again
        assert elementwise_bytes(layout, constants) == pytest.approx(moved)
        (stage, whole), (without, all_without) = (
            self.seconds(each, full_recompute=recomputed, layers_per_stage=4, sequence_parallel=0)
            for each in (constants, self.CONSTANTS)
        )
        assert stage - without == pytest.approx(4 * moved / 40.0)
        assert whole - all_without == pytest.approx(8 * moved / 40.0)

    def test_an_unbalanced_pipeline_waits_for_the_head(self) -> None:
        """Of four stages, evenly two layers each; the head of ten layers' cost is best alone, beside three of 8/3."""
        block = 2300.0
        vocabulary = 10 * block / 60
        for unbalance, expected in ((0.0, 10.0), (0.5, 11.0), (1.0, 12.0), (3.0, 12.0)):
            constants = {**self.CONSTANTS, "unbalance": unbalance}
            stage, whole = self.seconds(constants, vocabulary=vocabulary, pp=4, layers_per_stage=2)
            assert stage == pytest.approx(expected * block * 7 / 1000)
            assert whole == pytest.approx(18 * block * 7 / 1000)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("layers", [8, 12, 30])
@pytest.mark.parametrize("head", [0.0, 0.4, 1.0, 2.5, 6.0, 50.0])
def test_the_best_assignment_is_found(stages: int, layers: int, head: float) -> None:
    """Against every number of layers beside the head, the others spread as evenly as they can be."""
    others = stages - 1
    every = (
        [max(head + last, -(-(layers - last) // others)) for last in range(layers + 1)] if others else [layers + head]
    )
    (found,) = balanced_stage(layout_of(layers=layers, pp=stages), np.array([1.0]), np.array([head]))
    assert found == pytest.approx(min(every))


class TestCollectives:
    NUMBERS = {**LINKS, "tokens": 6, "width": 5, "sequence": 0}  # noqa: RUF012 - never changed

    @pytest.mark.parametrize(
        ("tp", "bandwidth", "latency"), [(2, 50.0, 3.0), (8, 50.0, 9.0), (16, 2.5, 7.0 * 4), (32, 2.5, 7.0 * 16)]
    )
    def test_tensor_parallel(self, tp: int, bandwidth: float, latency: float) -> None:
        _, (found,) = tensor_parallel(layout_of(**{**self.NUMBERS, "tp": tp}), RATES, NOTHING)
        assert found == pytest.approx(8 * 2 * 6 * 5 * (tp - 1) / tp / bandwidth + 6 * latency)

    @pytest.mark.parametrize(
        ("tp", "pp", "world", "expected"),
        [(4, 2, 16, 2.0), (1, 2, 16, 0.0), (4, 1, 16, 0.0), (4, 2, 8, 0.0), (8, 8, 64, 4.0)],
    )
    def test_contention(self, tp: int, pp: int, world: int, expected: float) -> None:
        (found,) = tp_contention(layout_of(**{**LINKS, "tp": tp, "pp": pp, "world": world}), {"tp_contention_s": 0.5})
        assert found == expected

    @pytest.mark.parametrize(
        ("cp", "tp", "bandwidth", "latency"),
        [(1, 1, 1.0, 0.0), (2, 1, 50.0, 3.0), (4, 2, 50.0, 3.0), (8, 2, 2.5, 7.0), (16, 1, 2.5, 7.0)],
    )
    def test_context_parallel(self, cp: int, tp: int, bandwidth: float, latency: float) -> None:
        """With nothing to hide behind: a sequence of no length needs no attention."""
        _, (found,) = context_parallel(layout_of(**{**self.NUMBERS, "cp": cp, "tp": tp, "kv_share": 0.5}), RATES)
        hop = 2 * 2 * 6 * 5 * 0.5 / tp / bandwidth
        exposed = 0.5 * hop * (1 + 1.04**0.5)
        assert found == pytest.approx(3 * (cp - 1) * (exposed + latency))

    def test_attention_hides_a_part_of_the_ring(self) -> None:
        numbers = {**self.NUMBERS, "cp": 4, "tp": 2, "kv_share": 1, "sequence": 20, "low_bit": 0, "compiled": 0}
        layout = layout_of(**numbers, peak=1000.0, attention_peak=1000.0)
        constants = {**RATES, "half_tokens": 0.0, "half_width": 0.0, "gemm_efficiency": 0.5, "link_tp_latency_s": 0.0}
        constants["attention_efficiency"] = 0.5
        hop, hidden = 2 * 2 * 6 * 5 / 2 / 50.0, 7 * 5 * 20 * 6 / 2 / 250.0 / 3 / 4
        _, (found,) = context_parallel(layout, constants)
        assert found == pytest.approx(9 * float(smooth_excess(np.array(hop), np.array(hidden))))

    @pytest.mark.parametrize(
        ("ep", "tp", "seconds", "latency"),
        [
            (2, 1, 4 * 90 * (1 / 2) / 50, 3.0),
            (4, 1, 4 * 90 * (3 / 4) / 50, 3.0),
            # Of 16 ranks, 8 are near: 8 / 16 of the tokens pass the network, which takes longer than 7 / 16 on links.
            (16, 1, 4 * 90 * (8 / 16) / 2.5, 7.0),
        ],
    )
    def test_expert_parallel(self, ep: int, tp: int, seconds: float, latency: float) -> None:
        """Three experts of a token: 6 tokens, 5 channels and 2 bytes each, 180 bytes in all; half of the blocks."""
        numbers = {**self.NUMBERS, "ep": ep, "tp": tp, "etp": tp, "active_experts": 3, "expert_share": 0.5}
        numbers |= {"expert_layers": 0.5}
        constants = {**RATES, "link_ep": 0.5, "network_ep": 0.25, "expert_imbalance": 0.0}
        every, (found,) = expert_parallel(layout_of(**numbers), constants, NOTHING)
        assert found == every[0] == pytest.approx(seconds + 0.5 * 4 * latency)
        for changes in ({"ep": 1}, {"expert_share": 0}):
            assert expert_parallel(layout_of(**{**numbers, **changes}), constants, NOTHING)[1][0] == 0.0

    @pytest.mark.parametrize(
        ("world", "sequence_parallel", "expected"),
        [(8, 0, 120 / 50.0), (8, 1, 60 / 50.0), (9, 0, 120 / 5.0), (9, 1, 60 / 5.0)],
    )
    def test_pipeline_transfers(self, world: int, sequence_parallel: int, expected: float) -> None:
        numbers = {**self.NUMBERS, "world": world, "tp": 2, "sequence_parallel": sequence_parallel, "chunks": 3}
        (found,) = pipeline_transfer(layout_of(**numbers, pp=2), RATES)
        assert found == pytest.approx(3 * (expected + 11.0))
        assert pipeline_transfer(layout_of(**numbers, pp=1), RATES)[0] == 0.0


class TestDataParallel:
    @pytest.mark.parametrize(
        ("ranks", "tp", "cp", "expected"),
        [
            (8, 1, 1, 40.0),  # one node
            (2, 2, 2, 40.0),
            (16, 1, 1, 2.0 * 8**0.5),  # eight cards per node
            (16, 2, 1, 2.0 * 4**0.5),
            (16, 2, 2, 2.0 * 4**0.5),
            (16, 16, 1, 2.0),
            (3, 4, 1, 2.0 * 2**0.5),
        ],
    )
    def test_ranks_of_a_node_share_its_cards(self, ranks: int, tp: int, cp: int, expected: float) -> None:
        layout = layout_of(**{**LINKS, "tp": tp, "cp": cp})
        assert dp_bandwidth(layout, RATES, np.array([float(ranks)]))[0] == pytest.approx(expected)

    def test_a_fast_network_is_no_faster_than_the_node(self) -> None:
        layout = layout_of(**{**LINKS, "network": 1000.0})
        assert dp_bandwidth(layout, RATES, np.array([16.0]))[0] == pytest.approx(40.0)

    SHARDED = {  # noqa: RUF012 - never changed
        **LINKS,
        "gathered_each_time": 0,
        "gathered_once": 0,
        "stage_params": 60,
        "shard": 4,
        "dp": 4,
        "layers_per_stage": 5,
        "hybrid": 0,
        "unknown_sharding": 0,
    }

    @pytest.mark.parametrize(("each_time", "once", "passes"), [(1, 0, 3), (0, 1, 2), (0.5, 0.25, 2), (0, 0, 0)])
    @pytest.mark.parametrize(("shard", "bandwidth", "growth"), [(4, 40.0, 1.0), (32, 2.0 * 8**0.5, 16.0)])
    def test_gathering_passes_over_the_parameters(
        self, each_time: float, once: float, passes: float, shard: int, bandwidth: float, growth: float
    ) -> None:
        layout = layout_of(
            **{**self.SHARDED, "gathered_each_time": each_time, "gathered_once": once, "shard": shard, "dp": shard}
        )
        seconds = passes * (2 * 60 * (shard - 1) / shard / bandwidth + 0.25 * 5 * growth)
        for overlap, share in ((0.25, 0.25), (1.0, 1.0), (1.7, 1.0)):
            (unhidden,), (found,) = gathering(layout, {**RATES, "overlap": overlap}, np.array([8.0]))
            assert unhidden == pytest.approx(seconds)
            excess = seconds - share * 8.0
            assert found == pytest.approx(0.5 * (excess + (excess**2 + (0.2 * seconds) ** 2) ** 0.5) if passes else 0.0)

    def test_one_rank_gathers_nothing(self) -> None:
        layout = layout_of(**{**self.SHARDED, "gathered_each_time": 1, "shard": 1, "dp": 1})
        assert [each[0] for each in gathering(layout, RATES, np.array([8.0]))] == [0.0, 0.0]

    @pytest.mark.parametrize(
        ("changes", "replicated", "ranks", "held", "bandwidth"),
        [
            ({}, 1.0, 4, 60, 40.0),
            ({"gathered_each_time": 0.5, "gathered_once": 0.25}, 0.25, 4, 60, 40.0),
            ({"gathered_each_time": 1, "hybrid": 1, "dp": 8}, 1.0, 2, 15, 40.0),
            ({"gathered_each_time": 1, "hybrid": 0.5, "dp": 8}, 0.5, 2, 15, 40.0),
        ],
        ids=["all", "a part", "hybrid", "hybrid layers"],
    )
    def test_gradients_are_reduced_over_the_replicas(
        self, changes: dict[str, float], replicated: float, ranks: int, held: float, bandwidth: float
    ) -> None:
        layout = layout_of(**{**self.SHARDED, **changes})
        seconds = 2 * 2 * replicated * held * (ranks - 1) / ranks / bandwidth
        for overlap, share in ((0.25, 0.25), (2.0, 2.0), (2.7, 2.0)):
            for busy in (0.0, 0.5) if changes.get("gathered_once") else (0.0,):
                _, (found,) = reduction(layout, {**RATES, "overlap": overlap}, np.array([3.0]), np.array([busy]))
                excess = seconds - max(share * 2 / 3 * 3.0 - 2 / 3 * busy, 0.0)
                exposed = 0.5 * (excess + (excess**2 + (0.2 * seconds) ** 2) ** 0.5)
                # The latency is of each layer that is reduced.
                layers = replicated if "gathered_once" in changes else 1.0
                assert found == pytest.approx(exposed + layers * 0.25 * 5)

    def test_nothing_is_reduced_where_all_is_sharded_or_alone(self) -> None:
        for changes in ({"gathered_each_time": 1}, {"dp": 1, "shard": 1}, {"gathered_once": 1, "hybrid": 0}):
            layout = layout_of(**{**self.SHARDED, **changes})
            assert [each[0] for each in reduction(layout, RATES, np.array([3.0]), np.zeros(1))] == [0.0, 0.0]

    @pytest.mark.parametrize(("sharded", "held"), [(0.0, 60.0), (1.0, 15.0), (0.5, 37.5)])
    def test_the_optimizer_reads_what_it_holds(self, sharded: float, held: float) -> None:
        layout = layout_of(**self.SHARDED, states_sharded=sharded, memory_bandwidth=40.0)
        assert optimizer(layout, {"memory_bandwidth": 0.8})[0] == pytest.approx(16 * held / 32.0)


def test_smooth_functions_are_those_of_their_docstrings() -> None:
    assert smooth_maximum(np.array(3.0), np.array(3.0)) == pytest.approx(3.0 * 2**0.25)
    assert smooth_maximum(np.array(3.0), np.array(1.0)) == pytest.approx(82**0.25)
    assert smooth_excess(np.array(5.0), np.array(5.0)) == pytest.approx(0.5)
    assert smooth_excess(np.array(5.0), np.array(1.0)) == pytest.approx(0.5 * (4 + 17**0.5))
    assert smooth_excess(np.array(1.0), np.array(9.0)) == pytest.approx(0.5 * (64.04**0.5 - 8))


class TestPipeline:
    TIMES = StepTime(
        steady={
            name: np.array([1.0])
            for name in (
                "compute",
                "tensor_parallel",
                "context_parallel",
                "expert_parallel",
                "pipeline_parallel",
                "data_parallel",
                "optimizer",
                "offload",
                "overhead",
            )
        },
        micro_batch=np.array([2.0]),
        through=np.array([7.0]),
        rounds=np.array([10.0]),
        stages=np.array([4.0]),
        bubble=np.array([0.5]),
    )

    def test_the_bubble_is_what_passes_through_less_one_round(self) -> None:
        assert self.TIMES.parts()["bubble"] == pytest.approx(0.5 * (7.0 - 2.0))
        slow = replace(self.TIMES, through=np.array([9.0]))
        assert slow.parts()["bubble"] == pytest.approx(0.5 * (4 * 2.0 - 2.0))
        assert replace(self.TIMES, through=np.array([1.0])).parts()["bubble"] == 0.0
        assert self.TIMES.total() == pytest.approx(9 + 2.5)

    def test_a_stall_partly_overlaps_with_its_round(self) -> None:
        """Of a second, three quarters are lost on four stages."""
        stalled = (2.0**2 + 0.75**2 + 2.0 * 0.75) ** 0.5
        parts = self.TIMES.parts(1.0)
        assert parts["pipeline_parallel"] == pytest.approx(1 + 10 * (stalled - 2.0))
        assert parts["bubble"] == pytest.approx(0.5 * (7.0 - stalled))
        assert parts["compute"] == 1.0
        assert self.TIMES.total(1.0) == pytest.approx(sum(parts.values()))


def test_the_host_and_every_round_count() -> None:
    """Two stages of one node: the parts of a round, times six rounds, and once a step what comes at its end."""
    layout = layout_of(pp=2, layers_per_stage=6, tp=2, dp=2, shard=2, gathered_each_time=0, gathered_once=0, chunks=1)
    constants = constants_of(launch_s=0.5, micro_batch_s=0.25, step_s=3.0, tp_contention_s=0.125)
    times = step_time(layout, constants)
    stage, whole = compute(layout, constants)
    _, tensor = tensor_parallel(layout, constants, NOTHING)
    transfer = pipeline_transfer(layout, constants)
    unfloored = stage + 6 * tensor
    floored = smooth_maximum(unfloored, np.array([6 * 0.5 + 0.25]))
    parts = times.parts()
    assert parts["compute"] == pytest.approx(6 * stage)
    assert parts["tensor_parallel"] == pytest.approx(6 * 6 * tensor)
    assert parts["overhead"] == pytest.approx(6 * (floored - unfloored) + 3.0)
    assert parts["pipeline_parallel"] == pytest.approx(6 * transfer)
    assert parts["data_parallel"] == pytest.approx(reduction(layout, constants, stage, np.zeros(1))[1])
    assert parts["optimizer"] == pytest.approx(optimizer(layout, constants))
    assert times.micro_batch == pytest.approx(floored + transfer)
    assert times.through == pytest.approx(whole + 12 * tensor)
    contended = step_time(SimpleNamespace(**{**vars(layout), "world": np.array([16.0])}), constants)
    apart = contended.parts()["tensor_parallel"] - parts["tensor_parallel"]
    assert apart == pytest.approx(6 * 6 * 0.125 * 2)
    gathered = SimpleNamespace(**{**vars(layout), "gathered_each_time": np.array([1.0])})
    _, exposed = gathering(gathered, constants, stage)
    assert step_time(gathered, constants).parts()["data_parallel"] == pytest.approx(6 * exposed)
    assert step_time(gathered, constants).micro_batch == pytest.approx(floored + transfer + exposed)
