"""Number format of autocast within a compiled forward, where no hook on a module can see it."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.kernels import is_compiled
from torchx_cubicml.recorder.model.live_objects import live_instances
from torchx_cubicml.recorder.model.operations import MAX_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.fx import Graph, Node

_STORED = "torch.float32"
_PRODUCTS = frozenset(
    {*("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"), *("conv1d", "conv2d", "conv3d")}
)


def compiled_autocast_type(root: nn.Module) -> str:
    """Return autocast's number format, such as ``torch.bfloat16``, in which a compiled model computes most products.

    Without autocast, torch multiplies operands of one format only. Empty if most products with operands in fp32 give
    fp32, and where the compiler keeps no graph that it traced.
    """
    if "torch._dynamo.output_graph" not in sys.modules or not is_compiled(root):
        return ""
    from torch.fx import Graph

    counted = Counter(dtype for graph in live_instances(Graph) for dtype in _types_of_products(graph))
    return counted.most_common(1)[0][0] if counted else ""


def _types_of_products(graph: Graph) -> Iterator[str]:
    """Yield for each product with operands in fp32 the format that autocast has chosen; empty where it is off."""
    for node in list(graph.nodes)[:MAX_NODES]:
        is_product = getattr(node.target, "__name__", "") in _PRODUCTS and "example_value" in node.meta
        if is_product and any(_type_of(each) == _STORED for each in node.all_input_nodes):
            yield "" if _type_of(node) == _STORED else _type_of(node)


def _type_of(node: Node) -> str:
    return str(getattr(node.meta.get("example_value"), "dtype", ""))
