from __future__ import annotations

import pytest

from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

NEEDED = {"n_layers": 12, "d_model": 768, "seq_len": 1024, "micro_batch_size": 8, "world_size": 16}


def layout_of(**changes: object) -> TrainingLayout:
    row = {name: value for name, value in {**NEEDED, **changes}.items() if value is not None}
    return TrainingLayout.of(Facts.from_rows([row]))


def test_the_required_facts_are_enough() -> None:
    layout = layout_of()
    assert layout.covered.all()
    assert layout.layer_params[0] == 12 * 768**2
    assert (layout.dp[0], layout.tp[0], layout.pp[0], layout.rounds[0]) == (16, 1, 1, 1)


@pytest.mark.parametrize("name", NEEDED)
def test_a_row_without_a_required_fact_is_not_covered(name: str) -> None:
    assert not layout_of(**{name: None}).covered.any()


@pytest.mark.parametrize(
    "instead",
    [
        {"d_model": None, "n_params": 12 * 12 * 768**2},
        {"world_size": None, "dp_degree": 2, "tp_degree": 8},
        {"world_size": None, "nnodes": 2, "nproc_per_node": 8},
    ],
    ids=["parameters for the width", "degrees for the devices", "nodes for the devices"],
)
def test_substitute_facts_serve(instead: dict[str, object]) -> None:
    layout = layout_of(**instead)
    assert layout.covered.all()
    assert layout.width[0] == pytest.approx(768)
    assert layout.world[0] == 16


def test_more_parallelism_than_devices_is_not_covered() -> None:
    assert not layout_of(tp_degree=32).covered.any()


def test_a_layer_is_sharded_once() -> None:
    layout = layout_of(zero_stage=3, sharding_strategy="SHARD_GRAD_OP")
    assert (layout.states_sharded[0], layout.gathered_each_time[0], layout.gathered_once[0]) == (1, 1, 0)


def test_rounds_follow_from_the_global_batch() -> None:
    assert layout_of(global_batch_size=512, tp_degree=2).rounds[0] == 8


@pytest.mark.parametrize(
    ("facts", "params"),
    [
        ({"d_ff": 3072}, 12 * 768**2),
        ({"d_ff": 2048}, (4 + 3 * 2048 / 768) * 768**2),
        ({"d_ff": 3072, "n_params": 12 * 16 * 768**2}, 16 * 768**2),
        ({"d_ff": 3072, "n_params": 12 * 12 * 768**2 + 2 * 768 * 50000, "vocab_size": 50000}, 12 * 768**2),
        ({"n_heads": 12, "n_kv_heads": 3}, (2.5 + 8) * 768**2),
        ({"n_experts": 8, "n_active_experts": 2}, (4 + 8 * 8) * 768**2),
    ],
    ids=["classical", "gated by its width", "gated by the count", "untied embeddings", "grouped queries", "experts"],
)
def test_parameters_of_a_block_follow_from_the_dimensions(facts: dict[str, object], params: float) -> None:
    assert layout_of(**facts).layer_params[0] == pytest.approx(params)


@pytest.mark.parametrize(
    ("words", "peak"),
    [
        ({"device": "H100", "precision": "bf16"}, 989.4e12),
        ({"device": "H100", "precision": "amp_bf16"}, 989.4e12),
        ({"device": "H100", "precision": "fp8"}, 1978.9e12),
        ({"device": "A100", "precision": "fp32"}, 19.5e12),
        ({"device": "A100"}, 312e12),
        ({"device": "cpu"}, 0.1e12),
        ({"device": "abacus"}, 989.4e12),
        ({}, 989.4e12),
    ],
    ids=str,
)
def test_the_peak_is_that_of_device_and_precision(words: dict[str, object], peak: float) -> None:
    assert layout_of(**words).peak[0] == pytest.approx(peak)


def test_attention_computes_in_bf16_beside_fp8() -> None:
    assert fields_of("peak attention_peak", device="H100", precision="fp8") == [1978.9e12, 989.4e12]
    assert fields_of("peak attention_peak", device="A100", precision="fp32") == [19.5e12, 19.5e12]


def test_a_rack_of_fast_links_is_one_node() -> None:
    assert layout_of(device="NVIDIA GB200", nproc_per_node=4).per_node[0] == 72
    assert layout_of(device="NVIDIA H100", nproc_per_node=4).per_node[0] == 4


@pytest.mark.parametrize(
    "others",
    [[{"device": "a100"}], [{"precision": "BF16"}], [{"device": "a100", "precision": "BF16"}, {"device": "H100"}]],
    ids=["device", "precision", "both"],
)
def test_a_row_is_read_alike_beside_other_spellings(others: list[dict[str, str]]) -> None:
    row = {"n_layers": 24, "d_model": 1024, "seq_len": 1024, "micro_batch_size": 4, "world_size": 8}
    row |= {"device": "A100", "precision": "bf16"}
    alone = TrainingLayout.of(Facts.from_rows([row]))
    beside = TrainingLayout.of(Facts.from_rows([row, *({**row, **other} for other in others)]))
    for name in ("peak", "memory", "width_bytes", "memory_bandwidth"):
        assert getattr(beside, name)[0] == pytest.approx(getattr(alone, name)[0])


def fields_of(names: str, **facts: object) -> list[float]:
    layout = layout_of(**facts)
    return [float(getattr(layout, name)[0]) for name in names.split()]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"dp_degree": 2}, (16, 16, 1, 1, 1, 1)),  # the devices decide
        ({"tp_degree": 2, "pp_degree": 4, "cp_degree": 2, "ep_degree": 8}, (16, 1, 2, 4, 2, 8)),
        ({"world_size": None, "dp_degree": 2, "tp_degree": 2, "pp_degree": 3, "cp_degree": 4}, (48, 2, 2, 3, 4, 1)),
        ({"world_size": None, "dp_shard_degree": 2}, (2, 2, 1, 1, 1, 1)),
        ({"world_size": None, "dp_shard_degree": 2, "dp_replicate_degree": 3}, (6, 6, 1, 1, 1, 1)),
        ({"world_size": None, "dp_degree": 4, "dp_shard_degree": 2, "dp_replicate_degree": 3}, (4, 4, 1, 1, 1, 1)),
        ({"world_size": None, "nnodes": 2, "nproc_per_node": 4, "dp_degree": 3}, (8, 8, 1, 1, 1, 1)),
        ({"nnodes": 3, "nproc_per_node": 4}, (16, 16, 1, 1, 1, 1)),
    ],
)
def test_degrees_multiply_to_the_devices(facts: dict[str, object], expected: tuple[float, ...]) -> None:
    assert fields_of("world dp tp pp cp ep", **facts) == list(expected)


@pytest.mark.parametrize(
    ("facts", "heads", "kv_share"),
    [
        ({}, 6, 1.0),
        ({"d_model": 200}, 2, 1.0),
        ({"d_model": 32}, 1, 1.0),
        ({"n_heads": 8, "n_kv_heads": 2}, 8, 0.25),
        ({"n_kv_heads": 3}, 6, 0.5),
        ({"n_kv_heads": 24}, 6, 1.0),
    ],
)
def test_a_head_has_128_channels(facts: dict[str, object], heads: float, kv_share: float) -> None:
    assert fields_of("heads kv_share", **facts) == [heads, kv_share]


@pytest.mark.parametrize(
    ("facts", "inner"),
    [
        ({}, 8.0),  # two matrices, four times the width
        ({"d_ff": 3072}, 8.0),
        ({"d_ff": 3072 + 6}, 2 * 3078 / 768),  # within a hundredth
        ({"d_ff": 3072 + 9}, 4 * 3081 / 768),
        ({"d_ff": 2048}, 4 * 2048 / 768),
        (
            {"d_ff": 2048, "n_experts": 4, "n_params": 12 * (4 + 2 * 8 / 3) * 768**2},
            2 * 4 * 2048 / 768,
        ),  # of two experts
        ({"d_ff": 2048, "n_params": 12 * (4 + 2 * 8 / 3) * 768**2}, 2 * 2048 / 768),
        ({"d_ff": 2048, "n_params": 12 * (4 + 3 * 8 / 3) * 768**2}, 4 * 2048 / 768),
        ({"d_ff": 2048, "n_kv_heads": 3, "n_heads": 12, "n_params": 12 * (2.5 + 2 * 8 / 3) * 768**2}, 2 * 2048 / 768),
    ],
)
def test_a_gated_mlp_keeps_twice_the_tensors(facts: dict[str, object], inner: float) -> None:
    assert fields_of("inner", **facts) == pytest.approx([inner])


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("matrices", [2, 3])
def test_embeddings_are_counted_in_any_way(times: int, matrices: int) -> None:
    params = 12 * (4 + matrices * 4) * 768**2 + times * 30_000 * 768
    (inner,) = fields_of("inner", d_ff=3072, n_params=params, vocab_size=30_000)
    assert inner == {2: 8.0, 3: 16.0}[matrices]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, (0.0, 12, 1)),
        ({"n_experts": 8}, (64 / 68, 20, 2)),
        ({"n_experts": 8, "n_active_experts": 3}, (64 / 68, 28, 3)),
        ({"n_experts": 2, "n_active_experts": 5}, (16 / 20, 20, 2)),
        ({"n_active_experts": 5}, (0.0, 12, 1)),
    ],
)
def test_a_token_uses_its_experts_alone(facts: dict[str, object], expected: tuple[float, ...]) -> None:
    share, params, experts = fields_of("expert_share active_params active_experts", **facts)
    assert (share, params / 768**2, experts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("facts", "rounds"),
    [
        ({"global_batch_size": 100}, 1.0),
        ({"global_batch_size": 1024}, 8.0),
        ({"global_batch_size": 1024, "gradient_accumulation_steps": 3}, 3.0),
        ({"gradient_accumulation_steps": 0.5}, 1.0),
    ],
)
def test_a_step_has_one_round_at_least(facts: dict[str, object], rounds: float) -> None:
    assert fields_of("rounds", **facts) == [rounds]


def test_tokens_and_parameters_are_split_over_devices() -> None:
    facts = {"world_size": 64, "tp_degree": 2, "pp_degree": 5, "cp_degree": 2, "gradient_accumulation_steps": 3}
    names = "tokens tokens_per_step layers_per_stage"
    assert fields_of(names, **facts) == pytest.approx([8 * 1024 / 2, 8 * 1024 * 3 * 64 / 20, 3])
    (params,) = fields_of("stage_params", **facts, vocab_size=1000, n_experts=8, ep_degree=4)
    assert params == pytest.approx(((4 + 64 / 4) * 768**2 * 12 / 5 + 1000 * 768) / 2)


@pytest.mark.parametrize(
    ("facts", "width_bytes", "low_bit"),
    [
        ({}, 2, 0),
        ({"precision": "bf16"}, 2, 0),
        ({"precision": "fp16"}, 2, 0),
        ({"precision": "fp8"}, 2, 1),
        ({"precision": "fp32"}, 4, 0),
        ({"precision": "tf32"}, 4, 0),
        ({"device": "cpu"}, 4, 0),
        ({"device": "cpu", "precision": "bf16"}, 2, 0),
    ],
    ids=str,
)
def test_a_number_has_two_bytes_or_four(facts: dict[str, object], width_bytes: float, low_bit: float) -> None:
    assert fields_of("width_bytes low_bit", **facts) == [width_bytes, low_bit]


@pytest.mark.parametrize("precision", ["nobody's", "nvfp4", "mxfp8", "int8"])
def test_an_unknown_number_format_is_not_taken_for_another(precision: str) -> None:
    assert not layout_of(precision=precision).covered.any()


def test_a_device_without_bf16_trains_in_fp16() -> None:
    assert fields_of("peak width_bytes", device="Tesla V100-SXM2-32GB") == [125e12, 2.0]


SHARDING = "gathered_each_time gathered_once hybrid states_sharded gradients_sharded shard"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, (0, 0, 0, 0, 0, 16)),
        ({"zero_stage": 1}, (0, 0, 0, 1, 0, 16)),
        ({"zero_stage": 2}, (0, 0, 0, 1, 1, 16)),
        ({"zero_stage": 3}, (1, 0, 0, 1, 1, 16)),
        ({"sharding_strategy": "FULL_SHARD"}, (1, 0, 0, 1, 1, 16)),
        ({"sharding_strategy": "SHARD_GRAD_OP"}, (0, 1, 0, 1, 1, 16)),
        ({"sharding_strategy": "NO_SHARD"}, (0, 0, 0, 0, 0, 16)),
        ({"sharding_strategy": "HYBRID_SHARD"}, (1, 0, 1, 1, 1, 8)),
        ({"sharding_strategy": "_HYBRID_SHARD_ZERO2"}, (0, 1, 1, 1, 1, 8)),
        ({"sharding_strategy": "HYBRID_SHARD", "tp_degree": 2}, (1, 0, 1, 1, 1, 4)),
        ({"sharding_strategy": "HYBRID_SHARD", "cp_degree": 4}, (1, 0, 1, 1, 1, 8)),
        ({"sharding_strategy": "FULL_SHARD", "cp_degree": 4, "dp_shard_degree": 2}, (1, 0, 0, 1, 1, 8)),
        ({"sharding_strategy": "HYBRID_SHARD", "tp_degree": 16}, (1, 0, 1, 1, 1, 1)),
        ({"sharding_strategy": "HYBRID_SHARD", "dp_shard_degree": 4}, (1, 0, 1, 1, 1, 4)),
        ({"sharding_strategy": "HYBRID_SHARD", "world_size": 4}, (1, 0, 1, 1, 1, 4)),
        ({"sharding_strategy": "FULL_SHARD", "dp_shard_degree": 4}, (1, 0, 0, 1, 1, 4)),
        ({"sharding_strategy": "FULL_SHARD", "dp_shard_degree": 64}, (1, 0, 0, 1, 1, 16)),
        ({"sharding_strategy": ("HYBRID_SHARD",) * 6 + ("NO_SHARD",) * 6}, (0.5, 0, 0.5, 0.5, 0.5, 8)),
        (
            {"sharding_strategy": ("HYBRID_SHARD",) * 3 + ("SHARD_GRAD_OP",)},
            (0.75, 0.25, 0.75, 1, 1, 1 / (0.75 / 8 + 0.25 / 16)),
        ),
    ],
    ids=str,
)
def test_strategies_and_stages_shard_states(facts: dict[str, object], expected: tuple[float, ...]) -> None:
    assert fields_of(SHARDING, **facts) == pytest.approx(list(expected))


@pytest.mark.parametrize(
    ("facts", "chunks", "bubble", "in_flight"),
    [
        ({}, 1, 1.0, 4),
        ({"pp_schedule": "1F1B"}, 1, 1.0, 4),
        ({"pp_schedule": "Interleaved1F1B"}, 2, 0.5, 5.5),
        ({"pp_schedule": "interleaved", "virtual_pp_degree": 4}, 4, 0.25, 4.75),
        ({"virtual_pp_degree": 5}, 5, 0.2, 4.6),
        ({"pp_stages": 8}, 2, 0.5, 5.5),
        ({"pp_schedule": "Zero-Bubble"}, 1, 1 / 3, 4),
        ({"pp_schedule": "ZB-H1", "activation_checkpointing": "full"}, 1, 1 / 2, 4),
        ({"pp_schedule": "InterleavedZeroBubble"}, 2, 1 / 6, 5.5),
        ({"pp_schedule": "ZBVZeroBubble", "virtual_pp_degree": 2}, 2, 0.0, 4),
        ({"pp_schedule": "ScheduleZBVZeroBubble", "activation_checkpointing": "full"}, 2, 1 / 4, 4),
        ({"pp_schedule": "ZB-H2"}, 1, 0.0, 7),
        ({"pp_schedule": "DualPipe"}, 1, 2 / 9, 5),
        ({"pp_schedule": "DualPipeV"}, 2, 1 / 3, 5),
        ({"pp_schedule": "ScheduleGPipe"}, 1, 1.0, 10),
        ({"pp_schedule": "ScheduleLoopedBFS"}, 2, 0.5, 10),
        ({"pp_schedule": "GPipe"}, 1, 1.0, 10),
        ({"pp_schedule": "AFAB"}, 1, 1.0, 10),
        ({"gradient_accumulation_steps": 3}, 1, 1.0, 3),
        ({"pp_schedule": "GPipe", "gradient_accumulation_steps": 3}, 1, 1.0, 3),
    ],
    ids=str,
)
def test_a_schedule_sets_bubble_and_rounds_in_flight(
    facts: dict[str, object], chunks: float, bubble: float, in_flight: float
) -> None:
    given = {"pp_degree": 4, "gradient_accumulation_steps": 10, **facts}
    assert fields_of("chunks bubble in_flight", **given) == pytest.approx([chunks, bubble, in_flight])


@pytest.mark.parametrize(
    ("field", "fact", "yes", "no"),
    [
        (
            "full_recompute",
            "activation_checkpointing",
            ("full", "Full", True, 1, "yes", "on"),
            ("none", "selective", False),
        ),
        ("selective_recompute", "activation_checkpointing", ("selective",), ("none", "full")),
        (
            "plain_attention",
            "attention_kernel",
            ("eager", "math", "torch", "naive", "plain", "none"),
            ("flash", "sdpa", "xformers"),
        ),
        ("sequence_parallel", "sequence_parallel", (True, "yes", None, "on"), (False, 0, "no", "off")),
        ("compiled", "compile", (True, 1, "yes", "on"), (False, 0, "no", None)),
    ],
)
def test_switches_have_several_spellings(
    field: str, fact: str, yes: tuple[object, ...], no: tuple[object, ...]
) -> None:
    assert [fields_of(field, **{fact: word}) for word in yes] == [[1.0]] * len(yes)
    assert [fields_of(field, **{fact: word}) for word in no] == [[0.0]] * len(no)


@pytest.mark.parametrize("text", ["1.0", "1", "True", "0.0", "0", "False"])
def test_numbers_as_words_are_switches_too(text: str) -> None:
    on = float(text in {"1.0", "1", "True"})
    names = "full_recompute compiled sequence_parallel"
    facts = dict.fromkeys(("activation_checkpointing", "compile", "sequence_parallel"), text)
    assert fields_of(names, **facts) == [on, on, on]


@pytest.mark.parametrize(("tp", "covered"), [(16, True), (32, False)])
def test_each_model_needs_one_rank(tp: int, covered: bool) -> None:
    assert layout_of(tp_degree=tp).covered.tolist() == [covered]
