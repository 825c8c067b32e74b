"""Kernels of a model: attention implementation and compilation."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import user_class
from torchx_cubicml.recorder.model.operations import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn
    from torch.autograd.graph import Node

    from torchx_cubicml.records.values import Value


# Node names of each kernel; the first match counts. Torch's SDPA has one entry per backend.
_KERNELS = (
    ("sdpa_flash", re.compile(r"^ScaledDotProductFlashAttention")),
    ("sdpa_efficient", re.compile(r"^ScaledDotProductEfficientAttention")),
    ("sdpa_cudnn", re.compile(r"^ScaledDotProductCudnnAttention")),
    ("sdpa_overrideable", re.compile(r"^ScaledDotProductFusedAttentionOverrideable")),
    ("flex_attention", re.compile(r"^FlexAttention")),
    ("flash_attention", re.compile(r"^FlashAttn")),
    ("xformers", re.compile(r"^_?fMHA|^_memory_efficient_attention", re.IGNORECASE)),
    ("transformer_engine", re.compile(r"^FusedAttnFunc")),
)
_SOFTMAX = re.compile(r"^(?:Safe)?SoftmaxBackward")
_PRODUCT = re.compile(r"^(?:Bmm|Matmul)Backward")


def attention_kernel(node: Node, n_layers: int) -> str:
    """Return the attention kernels in an autograd graph; ``math`` for plain products and a softmax; empty if not found.

    Args:
        node: of the output of a forward; its graph lacks parts that were compiled or that ``use_reentrant=True``
            recomputes in backward.
        n_layers: number of repeated layers of the model.
    """
    found: set[str] = set()
    softmaxes = products = 0
    for name in _node_names(node):
        found.update(islice((kernel for kernel, pattern in _KERNELS if pattern.search(name)), 1))
        softmaxes += bool(_SOFTMAX.search(name))
        products += bool(_PRODUCT.search(name))
    if found:
        return "+".join(sorted(found))
    return "math" if softmaxes >= n_layers > 0 and products >= 2 * n_layers else ""


def _node_names(node: Node) -> Iterator[str]:
    for each in walk(node):
        yield each.name().rpartition("::")[2]


# Mode for each pair of inductor's options: whether it autotunes kernels, and whether it records CUDA graphs.
_MODES = {
    (False, False): "default",
    (False, True): "reduce-overhead",
    (True, True): "max-autotune",
    (True, False): "max-autotune-no-cudagraphs",
}


def is_compiled(root: nn.Module) -> bool:
    """Return whether ``torch.compile`` wraps a part of the model or has compiled any function."""
    return any(True for _ in compiled_modules(root)) or has_compiled()


def overlaps_tensor_parallelism(root: nn.Module, tp_degree: Value | None) -> bool | None:
    """Return whether inductor pipelines the collectives of tensor parallelism with products (asynchronous TP).

    ``None`` without tensor parallelism or compilation, and if this torch has no such option.
    """
    if not isinstance(tp_degree, int) or tp_degree == 1 or not is_compiled(root):
        return None
    option = getattr(sys.modules.get("torch._inductor.config"), "_micro_pipeline_tp", None)
    return option if isinstance(option, bool) else None


def compile_facts(root: nn.Module) -> dict[str, Value]:
    """Return whether the model is compiled and, if inductor compiles it, the mode."""
    facts: dict[str, Value] = {"compile": is_compiled(root)}
    modes = {mode for part in _compiled_parts(root) if (mode := _mode(part))}
    if len(modes) == 1:
        facts["compile_mode"] = modes.pop()
    return facts


def has_compiled() -> bool:
    """Return whether ``torch.compile`` has compiled any function in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters.get("stats", {}).get("unique_graphs"))


def compiled_modules(root: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a model that are compiled: wrappers of ``torch.compile``, and modules compiled in place."""
    for module in root.modules():
        if _is_wrapper(module) or vars(module).get("_compiled_call_impl") is not None:
            yield module


def _is_wrapper(module: nn.Module) -> bool:
    return user_class(module).__name__ == "OptimizedModule"


def _compiled_parts(root: nn.Module) -> Iterator[object]:
    for module in compiled_modules(root):
        if _is_wrapper(module):
            yield module
        in_place = vars(module).get("_compiled_call_impl")
        if in_place is not None:
            yield getattr(in_place, "of_torchx_cubicml_around", in_place)


def _mode(part: object) -> str:
    config: Mapping[str, object] | None = None
    get_config = getattr(part, "get_compiler_config", None)
    with suppress(AttributeError, ImportError, TypeError, RuntimeError):
        config = get_config() if get_config is not None else None
    if not isinstance(config, dict):
        return ""
    return _MODES[bool(config.get("max_autotune")), bool(config.get("triton.cudagraphs"))]
