"""Attention heads of a model, read from the shapes that attention is called with.

A head count must agree with the projection behind attention, whose input is all heads side by side. A transposed layout
or a merged batch does not. Keys and values may be repeated to all heads before the call. Their own count is the
smallest tensor between their projection and the call, as repeating makes them larger. What does not agree is left out.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.live_objects import live_instances
from torchx_cubicml.recorder.model.operations import compiled_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchx_cubicml.recorder.model.operations import Operation, Shape

HEADS = ("n_heads", "n_kv_heads")

# Fused attention by the names of nodes and functions, with the dimension of its output that counts the heads.
_FUSED = (
    (re.compile(r"^_?Scaled_?Dot_?Product", re.IGNORECASE), 1),
    (re.compile(r"^Flex_?Attention", re.IGNORECASE), 1),
    (re.compile(r"^FlashAttn"), -2),
    (re.compile(r"^_?fMHA|^_memory_efficient_attention", re.IGNORECASE), -2),
)
_SOFTMAX = re.compile(r"^_?(?:Safe_?)?Softmax(?:Backward\d*)?$", re.IGNORECASE)
_BATCHED = re.compile(r"^(?:baddb|b)mm(?:Backward\d*)?$|^mat_?mul|^einsum", re.IGNORECASE)
_PRODUCT = re.compile(
    rf"{_BATCHED.pattern}|^(?:add)?mm(?:Backward\d*)?$|linear|mat_?mul|scaled_?mm|^conv", re.IGNORECASE
)
_LEAF = re.compile(r"^AccumulateGrad$|^l_")  # a parameter; the second in graphs of a compiler
_MOST_VISITED = 300  # operations between attention and a projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Shapes of one call of attention in this process, which tensor parallelism may give a part of the heads.

    Args:
        heads: of queries.
        kv_heads: of keys and values; ``None`` if unknown.
        head_width: channels of one head's output.
        merged: input width of the projection behind it.
        width: output width of that projection.
        kv_projected: output width of the projection of keys, if it makes nothing else.
    """

    heads: int
    kv_heads: int | None
    head_width: int
    merged: int
    width: int
    kv_projected: int | None = None

    def all_heads(self, tp_degree: int | None) -> int | None:
        """Return the heads of the whole model; ``None`` if they are uncertain."""
        own = self.heads * self.head_width
        if tp_degree == 1 or own == self.width:
            return self.heads if own == self.merged else None
        if tp_degree is not None and own * tp_degree in {self.merged, self.width}:
            return self.heads * tp_degree
        return None

    def all_kv_heads(self, tp_degree: int | None) -> int | None:
        """Return the heads of keys and values of the whole model; ``None`` if they are uncertain."""
        if self.kv_heads is None or self.all_heads(tp_degree) == self.heads:
            return self.kv_heads
        # A rank may hold a share of these heads or a copy of them: only the width of their projection tells.
        every = self.kv_heads * (tp_degree or 1)
        return every if self.kv_projected == every * self.head_width else None


def head_counts(calls: Iterable[Attention | None], *, tp_degree: int | None) -> dict[str, int]:
    """Return the heads under their standard names, if all calls of attention agree.

    Args:
        calls: of attention; ``None`` for one whose shapes do not fit together.
        tp_degree: ranks that share the heads; ``None`` if unknown.
    """
    found = list(calls)
    known = [each for each in found if each is not None]
    heads = {each.all_heads(tp_degree) for each in known}
    count = heads.pop() if len(heads) == 1 and len(known) == len(found) else None
    if count is None:
        return {}
    kv_heads = {each.all_kv_heads(tp_degree) for each in known}
    of_keys = kv_heads.pop() if len(kv_heads) == 1 else None
    return {"n_heads": count} if of_keys is None else dict(zip(HEADS, (count, of_keys), strict=True))


def compiled_attention_calls() -> frozenset[Attention | None]:
    """Return the calls of attention in the graphs that ``torch.compile`` traced; none if it keeps no such graph."""
    if "torch._dynamo.output_graph" not in sys.modules:
        return frozenset()
    from torch.fx import Graph

    graphs = live_instances(Graph)
    return frozenset(call for graph in graphs for call in attention_calls(compiled_operations(graph)))


def attention_calls(operations: Sequence[Operation]) -> frozenset[Attention | None]:
    """Return the distinct calls of attention among the operations of one forward."""
    graph = _Operations(operations)
    calls: set[Attention | None] = set()
    for index, operation in enumerate(operations):
        head_dim = _head_dim(operation.name)
        if head_dim is not None:
            calls.add(graph.fused(index, head_dim))
        elif _SOFTMAX.search(operation.name) and (products := graph.products_around(index)) is not None:
            calls.add(graph.plain(index, *products))
    return frozenset(calls)


def _head_dim(name: str) -> int | None:
    return next((dimension for pattern, dimension in _FUSED if pattern.search(name)), None)


class _Operations:
    """Operations of one forward, with the users of each."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._all = operations
        names = {operation.name for operation in operations}
        products, fused = set(filter(_PRODUCT.search, names)), {name for name in names if _head_dim(name) is not None}
        ends = fused.union(filter(_LEAF.search, names))
        self._is_product = [operation.name in products for operation in operations]
        self._is_fused = [operation.name in fused for operation in operations]
        self._is_end = [operation.name in ends for operation in operations]
        self._users: list[list[int]] = [[] for _ in operations]
        for number, operation in enumerate(operations):
            for made_by, _ in operation.operands:
                if made_by is not None:
                    self._users[made_by].append(number)

    def fused(self, index: int, head_dim: int) -> Attention | None:
        """Return the shapes of a call of one kernel; ``None`` if they do not fit together."""
        shape = self._all[index].shape
        projection = self._projection(index)
        if len(shape) not in {3, 4} or projection is None or prod(shape) == 0:
            return None
        rows, merged, width = projection
        heads, head_width = shape[head_dim], shape[-1]
        if rows * heads * head_width != prod(shape):
            return None
        kv_heads, kv_projected = self._kv_heads_of_call(index, head_dim)
        return Attention(
            heads=heads,
            kv_heads=kv_heads if kv_heads is not None and heads % kv_heads == 0 else None,
            head_width=head_width,
            merged=merged,
            width=width,
            kv_projected=kv_projected,
        )

    def products_around(self, softmax: int) -> tuple[int, int] | None:
        """Return the products that make the scores and use their softmax; ``None`` if it is no attention."""
        shape = self._all[softmax].shape
        scores, users = self._sources(softmax), self._consumers(softmax)
        is_batched = all(_BATCHED.search(self._all[each].name) for each in [*scores, *users])
        if len(scores) != 1 or len(users) != 1 or not is_batched or len(shape) < 3:
            return None
        (values, probabilities) = next(iter(users.items()))
        return (scores.pop(), values) if probabilities[-1:] == shape[-1:] else None

    def plain(self, softmax: int, scores: int, values: int) -> Attention | None:
        """Return the shapes of attention by two products around a softmax; ``None`` if they do not fit together."""
        shape, value_shape = self._all[softmax].shape, self._all[values].shape
        projection = self._projection(values)
        if projection is None or not value_shape or prod(shape) == 0:
            return None
        rows, merged, width = projection
        heads, rest = divmod(prod(shape), rows * shape[-1])
        if rest or heads < 1:
            return None
        return Attention(
            heads=heads,
            kv_heads=self._kv_heads_of_scores(scores, heads, rows, rows * shape[-1] // shape[-2]),
            head_width=value_shape[-1],
            merged=merged,
            width=width,
        )

    def _kv_heads_of_call(self, index: int, head_dim: int) -> tuple[int | None, int | None]:
        counts, projected = [], None
        for made_by, shape in self._all[index].operands[1:3]:
            if made_by is None or len(shape) not in {3, 4}:
                return None, None
            rows = prod(shape) // (shape[head_dim] * shape[-1])
            counts.append(self._smallest(made_by, shape[-1], rows))
            projected = projected or self._own_projection(made_by, index)
        return (counts[0] if len(counts) == 2 and counts[0] == counts[1] else None), projected

    def _own_projection(self, keys: int, call: int) -> int | None:
        """Return the output width of the projection of keys if no query comes from it."""
        of_keys = self._sources(keys)
        queries = self._all[call].operands[0][0]
        if len(of_keys) != 1 or queries is None or of_keys & self._sources(queries):
            return None
        return self._all[of_keys.pop()].shape[-1]

    def _kv_heads_of_scores(self, scores: int, heads: int, query_rows: int, key_rows: int) -> int | None:
        operands = self._all[scores].operands[-2:]
        sources = [made_by for made_by, _ in operands if made_by is not None]
        if len(sources) != 2 or not operands[0][1]:
            return None
        width = operands[0][1][-1]
        for queries, keys in (sources, sources[::-1]):
            found = self._smallest(keys, width, key_rows)
            if self._smallest(queries, width, query_rows) == heads and found is not None and heads % found == 0:
                return found
        return None

    def _smallest(self, start: int, width: int, rows: int) -> int | None:
        """Return the heads of the smallest tensor of one head's width between a projection and ``start``."""
        sizes = [prod(self._all[each].shape) for each in self._between(start) if self._all[each].shape[-1:] == (width,)]
        counts = [size // (rows * width) for size in sizes if rows and size >= rows * width]
        return min(counts, default=None)

    def _projection(self, index: int) -> tuple[int, int, int] | None:
        """Return rows, input width and output width of the projection that uses a result; ``None`` if ambiguous."""
        inputs = {shape for shape in self._consumers(index).values() if shape}
        widths = {shape[-1] for shape in inputs}
        if len(widths) != 1:
            return None
        merged = widths.pop()
        rows = {prod(shape) // merged for shape in inputs}
        outputs = [self._all[each].shape[-1] for each in self._consumers(index) if self._all[each].shape]
        return (rows.pop(), merged, max(outputs)) if len(rows) == 1 and outputs else None

    def _consumers(self, index: int) -> dict[int, Shape]:
        """Return the nearest products that use a result, and the shape in which each receives it."""
        found: dict[int, Shape] = {}

        def users(number: int) -> list[int]:
            onward = []
            for user in self._users[number]:
                if self._is_product[user]:
                    found[user] = next(shape for made_by, shape in self._all[user].operands if made_by == number)
                elif not self._is_fused[user]:
                    onward.append(user)
            return onward

        _visit(users(index), users)
        return found

    def _sources(self, index: int) -> set[int]:
        """Return the nearest products that a result is made from."""
        inputs = (made_by for each in self._between(index) for made_by, _ in self._all[each].operands)
        found = {each for each in inputs if each is not None and self._is_product[each]}
        return found | ({index} if self._is_product[index] else set())

    def _between(self, start: int) -> list[int]:
        """Return the operations from ``start`` back to the nearest products, which are left out, as are parameters."""

        def inner(numbers: Iterable[int | None]) -> list[int]:
            return [
                each for each in numbers if each is not None and not self._is_product[each] and not self._is_end[each]
            ]

        return _visit(inner([start]), lambda number: inner(made_by for made_by, _ in self._all[number].operands))


def _visit(starts: Sequence[int], onward: Callable[[int], Iterable[int]]) -> list[int]:
    """Return the operations reached from ``starts``, nearest first, at most ``_MOST_VISITED``."""
    reached = list(dict.fromkeys(starts))
    seen = set(reached)
    for number in reached:
        if len(reached) >= _MOST_VISITED:
            break
        for following in onward(number):
            if following not in seen:
                seen.add(following)
                reached.append(following)
    return reached
