"""Which kernel computes attention, read from the autograd graph of a forward: what ran has left its node there."""

from __future__ import annotations

import re
from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.autograd.graph import Node

_MAX_NODES = 20_000  # some 20 ms
# How the nodes of each kernel are called, the first that fits; those of torch's SDPA are its backends.
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
    """Return the kernel or kernels of attention; ``math`` for plain products and a softmax; empty where none shows.

    Args:
        node: of the output of a forward; what is recomputed in backward by ``use_reentrant=True``, or was compiled,
            does not show behind it.
        n_layers: repeated layers of the model.
    """
    found: Counter[str] = Counter()
    softmaxes = products = 0
    for name in _names_behind(node):
        kernel = next((kernel for kernel, pattern in _KERNELS if pattern.search(name)), "")
        found[kernel] += bool(kernel)
        softmaxes += bool(_SOFTMAX.search(name))
        products += bool(_PRODUCT.search(name))
    kernels = sorted(kernel for kernel, count in found.items() if count)
    if kernels:
        return "+".join(kernels)
    return "math" if softmaxes >= n_layers > 0 and products >= 2 * n_layers else ""


def _names_behind(node: Node) -> Iterator[str]:
    seen = {node}
    waiting = deque([node])
    while waiting and len(seen) < _MAX_NODES:
        current = waiting.popleft()
        yield current.name().rpartition("::")[2]
        for behind, _ in current.next_functions:
            if behind is not None and behind not in seen:
                seen.add(behind)
                waiting.append(behind)
