from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.recomputation import activation_bytes, recomputed_products, working_bytes
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

LLAMA: dict[str, Value] = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14336,
    "seq_len": 8192,
    "micro_batch_size": 1,
    "world_size": 8,
    "attention_kernel": "flash",
}


def layout_of(**changes: Value) -> TrainingLayout:
    return TrainingLayout.of(Facts.from_rows([{**LLAMA, **changes}]))


def shares_of(**changes: Value) -> list[float]:
    layout = layout_of(**changes)
    return [
        float(share[0]) for share in (layout.full_recompute, layout.selective_recompute, layout.operation_recompute)
    ]


@pytest.mark.parametrize(
    ("facts", "shares"),
    [
        ({"activation_checkpointing": "selective"}, [0, 1, 0]),
        ({"activation_checkpointing": "selective", "selective_recompute": "core_attn"}, [0, 1, 0]),
        ({"activation_checkpointing": "selective", "selective_recompute": "core_attn mlp"}, [0, 1, 0]),
        ({"activation_checkpointing": "selective", "selective_recompute": "layernorm"}, [0, 0, 0]),
        ({"activation_checkpointing": "selective", "selective_recompute": "op"}, [0, 0, 1]),
        ({"activation_checkpointing": "selective", "selective_recompute": "2"}, [1 / 2, 0, 0]),
        ({"activation_checkpointing": "selective", "selective_recompute": 4}, [1 / 4, 0, 0]),
        ({"activation_checkpointing": "selective_op"}, [0, 0, 1]),
        ({"activation_checkpointing": "selective layer"}, [1 / 2, 0, 0]),
        ({"activation_checkpointing": "full", "selective_recompute": "op"}, [1, 0, 0]),
        ({"activation_checkpointing": "none", "selective_recompute": "op"}, [0, 0, 0]),
        ({"activation_checkpointing": ("selective", "none") * 16, "selective_recompute": "op"}, [0, 0, 1 / 2]),
    ],
    ids=str,
)
def test_selective_is_what_the_trainer_means(facts: dict[str, Value], shares: list[float]) -> None:
    assert shares_of(**facts) == pytest.approx(shares)


def test_every_second_product_of_a_llama_layer_is_computed_again() -> None:
    """In units of the width squared: keys 1/4, attention's projection 1, one of the gate's pair 3.5; of 13 in all."""
    found = recomputed_products(layout_of(activation_checkpointing="selective", selective_recompute="op"))
    assert found[0] == pytest.approx((0.25 + 1 + 3.5) / (1 + 0.25 + 0.25 + 1 + 3 * 3.5))


def test_the_results_of_the_others_are_kept() -> None:
    """Two bytes each: the input, queries, values, attention, one of the gate's pair and the block's own result."""
    layout = layout_of(activation_checkpointing="selective", selective_recompute="op")
    channels = 1 + 1 + 0.25 + 1 + 3.5 + 1
    assert activation_bytes(layout)[0] == pytest.approx(2 * 8192 * 4096 * channels)


@given(tp=st.sampled_from([1, 2, 8]), kernel=st.sampled_from(["flash", "math"]), kv=st.sampled_from([4, 8, 32]))
@settings(max_examples=20, deadline=None)
def test_more_recomputation_keeps_less(tp: int, kernel: str, kv: int) -> None:
    options: list[dict[str, Value]] = [
        {"activation_checkpointing": "none"},
        {"activation_checkpointing": "selective"},
        {"activation_checkpointing": "selective", "selective_recompute": "op"},
        {"activation_checkpointing": "full"},
    ]
    layouts = [layout_of(tp_degree=tp, attention_kernel=kernel, n_kv_heads=kv, **option) for option in options]
    kept = [float(activation_bytes(layout)[0]) for layout in layouts]
    work = [float(recomputed_products(layout)[0]) for layout in layouts]
    assert kept == sorted(kept, reverse=True)
    assert work == sorted(work)
    assert [bool(working_bytes(layout)[0] > 0) for layout in layouts] == [False, False, True, True]


def test_fewer_heads_of_keys_keep_less() -> None:
    many, few = (activation_bytes(layout_of(n_kv_heads=count))[0] for count in (32, 8))
    assert many - few == pytest.approx(4 * 0.75 * 8192 * 4096)


def test_each_expert_keeps_its_input_and_its_result() -> None:
    facts: dict[str, Value] = {"n_experts": 8, "d_ff": 14336}
    one, two = (activation_bytes(layout_of(n_active_experts=count, **facts))[0] for count in (1, 2))
    assert two - one == pytest.approx(8192 * (2 * 4 * 14336 + 4 * 4096))


def test_encoded_options_mean_the_same() -> None:
    assert np.isclose(*(activation_bytes(layout_of(activation_checkpointing=word))[0] for word in ("full", "True")))


WIDTH, HEADS, KEYS, INNER, LENGTH = 64, 4, 2, 160, 96


def bytes_kept(recomputed: str) -> int:
    """Return the bytes that a Llama layer keeps for backward on the CPU, fp32, as PyTorch allocates them.

    Its result is among them and its input is not, as each is the other of a neighbour.
    """
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.utils.checkpoint")
    linear, head = torch.nn.Linear, WIDTH // HEADS
    sizes = {"wq": (WIDTH, WIDTH), "wk": (WIDTH, KEYS * head), "wv": (WIDTH, KEYS * head), "wo": (WIDTH, WIDTH)}
    sizes |= {"w1": (WIDTH, INNER), "w3": (WIDTH, INNER), "w2": (INNER, WIDTH)}
    layers = {name: linear(*size, bias=False) for name, size in sizes.items()}

    def block(x: torch.Tensor) -> torch.Tensor:
        normed = torch.nn.functional.rms_norm(x, (WIDTH,))
        query, key, value = (
            layers[name](normed).unflatten(-1, (-1, head)).transpose(1, 2) for name in ("wq", "wk", "wv")
        )
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + layers["wo"](attended.transpose(1, 2).flatten(2))
        normed = torch.nn.functional.rms_norm(x, (WIDTH,))
        return x + layers["w2"](torch.nn.functional.silu(layers["w1"](normed)) * layers["w3"](normed))

    products = 0

    def policy(_context: object, operation: object, *_args: object, **_kwargs: object) -> object:
        nonlocal products
        products += operation == torch.ops.aten.mm.default
        is_product = operation == torch.ops.aten.mm.default and products % 2 == 1
        saves = is_product or "scaled_dot_product" in str(operation)
        must = checkpoint.CheckpointPolicy
        return must.MUST_SAVE if saves else must.PREFER_RECOMPUTE

    contexts = {"op": lambda: checkpoint.create_selective_checkpoint_contexts(policy)}
    chosen = {"context_fn": contexts[recomputed]} if recomputed in contexts else {}
    x = torch.randn(1, LENGTH, WIDTH, requires_grad=True)

    def forward() -> torch.Tensor:
        if recomputed == "none":
            return block(x)
        return checkpoint.checkpoint(block, x, use_reentrant=False, preserve_rng_state=False, **chosen)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as trace:
        result = forward()
    events = [each.nbytes() for each in trace.profiler.kineto_results.events() if each.name() == "[memory]"]
    del result
    return sum(events)


@pytest.mark.parametrize(
    ("recomputed", "facts", "error"),
    [
        ("full", {"activation_checkpointing": "full"}, 1e-6),
        (
            "op",
            {"activation_checkpointing": "selective", "selective_recompute": "op"},
            0.01,
        ),  # one number per row of scores more
        ("none", {"activation_checkpointing": "none"}, 0.06),
    ],
)
def test_pytorch_keeps_about_as_much(recomputed: str, facts: dict[str, Value], error: float) -> None:
    row: dict[str, Value] = {
        "n_layers": 1,
        "d_model": WIDTH,
        "n_heads": HEADS,
        "n_kv_heads": KEYS,
        "d_ff": INNER,
        "seq_len": LENGTH,
        "micro_batch_size": 1,
        "world_size": 1,
        "device": "cpu",
        "attention_kernel": "sdpa",
        **facts,
    }
    ours = float(activation_bytes(TrainingLayout.of(Facts.from_rows([row])))[0])
    assert bytes_kept(recomputed) == pytest.approx(ours, rel=error)


def test_pytorch_keeps_as_much_more_of_experts() -> None:
    """An MLP of four experts, two for each token, beside one expert: the difference, fp32 on the CPU."""
    torch = pytest.importorskip("torch")
    functional, tokens, experts = torch.nn.functional, LENGTH, 4
    gates, ups = (torch.randn(experts, WIDTH, INNER, requires_grad=True) for _ in range(2))
    downs = torch.randn(experts, INNER, WIDTH, requires_grad=True)

    def mixed(x: torch.Tensor, active: int) -> torch.Tensor:
        """Each expert gets as many tokens, in order: no index is kept."""
        copies = x.repeat(active, 1).view(experts, -1, WIDTH)
        inner = functional.silu(torch.bmm(copies, gates)) * torch.bmm(copies, ups)
        weights = torch.ones(experts, active * tokens // experts, 1, requires_grad=True)
        return (torch.bmm(inner, downs) * weights).view(active, tokens, WIDTH).sum(dim=0)

    def kept(active: int) -> int:
        x = torch.randn(tokens, WIDTH, requires_grad=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as trace:
            result = mixed(x, active)
        events = [each.nbytes() for each in trace.profiler.kineto_results.events() if each.name() == "[memory]"]
        del result
        return sum(events) - 4 * active * tokens  # without the weights themselves

    facts: dict[str, Value] = {"d_model": WIDTH, "n_heads": HEADS, "n_kv_heads": HEADS, "d_ff": INNER}
    facts |= {"seq_len": LENGTH, "n_experts": experts, "n_layers": 1, "world_size": 1, "device": "cpu"}
    one, two = (float(activation_bytes(layout_of(**facts, n_active_experts=count))[0]) for count in (1, 2))
    assert kept(2) - kept(1) == pytest.approx(two - one, rel=0.02)
