"""Operations of one forward as plain records of names and shapes, from an autograd graph or a compiler's graph.

A shape in an autograd graph is metadata of a node. Reading it touches no saved tensor, so nothing is recomputed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.autograd.graph import Node
    from torch.fx import Graph
    from torch.fx import Node as CompiledNode

MAX_NODES = 20_000  # about 20 ms

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Operation of a forward.

    Args:
        name: of the autograd node or of the function.
        shape: of its first output; empty if unknown.
        operands: its tensor inputs in order: index of the operation that made it, and its shape; ``None`` and empty
            if unknown.
    """

    name: str
    shape: Shape
    operands: tuple[tuple[int | None, Shape], ...]


def walk(node: Node) -> Iterator[Node]:
    """Yield the nodes of an autograd graph from its output on, breadth first, at most ``MAX_NODES``."""
    seen = {node}
    pending = deque([node])
    while pending and len(seen) < MAX_NODES:
        current = pending.popleft()
        yield current
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def differentiated_operations(node: Node) -> list[Operation]:
    """Return the operations of the autograd graph behind an output; without shapes if this torch does not tell them."""
    nodes = list(walk(node))
    index = {each: number for number, each in enumerate(nodes)}
    shapes = [_output_shapes(each) for each in nodes]

    def operand(made_by: Node | None, output: int) -> tuple[int | None, Shape]:
        number = index.get(made_by) if made_by is not None else None
        known = number is not None and output < len(shapes[number])
        return (number, shapes[number][output]) if known and number is not None else (None, ())

    return [
        Operation(
            name=each.name().rpartition("::")[2],
            shape=found[0] if found else (),
            operands=tuple(operand(made_by, output) for made_by, output in each.next_functions),
        )
        for each, found in zip(nodes, shapes, strict=True)
    ]


def compiled_operations(graph: Graph) -> list[Operation]:
    """Return the operations of a graph that ``torch.compile`` traced, with the shapes at trace time.

    Empty for a graph of later stages of the compiler, which joins the forward with its backward.
    """
    nodes = list(graph.nodes)[:MAX_NODES]
    if not any("example_value" in each.meta for each in nodes):
        return []
    index = {each: number for number, each in enumerate(nodes)}
    shapes = [_traced_shape(each) for each in nodes]
    return [
        Operation(
            name=str(getattr(each.target, "__name__", each.target)),
            shape=shape,
            operands=tuple((index[made_by], shapes[index[made_by]]) for made_by in each.all_input_nodes),
        )
        for each, shape in zip(nodes, shapes, strict=True)
    ]


def _output_shapes(node: Node) -> list[Shape]:
    try:
        return [_whole(each.shape) for each in getattr(node, "_input_metadata", ())]
    except RuntimeError:  # such as a tensor of ragged rows
        return []


def _traced_shape(node: CompiledNode) -> Shape:
    return _whole(getattr(node.meta.get("example_value"), "shape", ()))


def _whole(shape: Sequence[object]) -> Shape:
    """Return a shape; empty if any size is symbolic."""
    sizes = tuple(size for size in shape if isinstance(size, int))
    return sizes if len(sizes) == len(shape) else ()
