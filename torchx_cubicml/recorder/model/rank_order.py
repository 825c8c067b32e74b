"""Order of the axes of a device mesh, read from the ranks that lie on it: which axis is outermost, which innermost."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def axis_order(sizes: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of the axes, outermost first; empty where the ranks are in no such order.

    The ranks along the innermost axis are neighbours. An axis of one rank has no order; it keeps its position.

    Args:
        sizes: of the axes.
        ranks: on the mesh, the last axis running fastest.

    >>> axis_order([2, 2], [0, 1, 2, 3]), axis_order([2, 2], [0, 2, 1, 3]), axis_order([2, 2], [0, 1, 3, 2])
    ((0, 1), (1, 0), ())
    """
    if not sizes or len(ranks) != prod(sizes):
        return ()
    steps = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]  # between neighbours along an axis, in ``ranks``
    strides = [ranks[step] - ranks[0] if size > 1 else 0 for size, step in zip(sizes, steps, strict=True)]
    if any(stride <= 0 for size, stride in zip(sizes, strides, strict=True) if size > 1):
        return ()
    layout = list(zip(sizes, steps, strides, strict=True))
    for place, rank in enumerate(ranks):
        if rank != ranks[0] + sum(place // step % size * stride for size, step, stride in layout):
            return ()
    several = [axis for axis, size in enumerate(sizes) if size > 1]
    sorted_axes = iter(sorted(several, key=lambda axis: -strides[axis]))
    return tuple(next(sorted_axes) if size > 1 else axis for axis, size in enumerate(sizes))


def flat(ranks: object) -> tuple[tuple[int, ...], list[int]]:
    """Return the sizes and the ranks of a tensor, an array or nested lists; no ranks where lists are no mesh.

    >>> flat([[0, 1], [2, 3]]), flat([[0, 1], 2])
    (((2, 2), [0, 1, 2, 3]), ((2, 2), []))
    """
    values: Any = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    sizes: list[int] = []
    first = values
    while isinstance(first, list | tuple) and first:
        sizes.append(len(first))
        first = first[0]
    try:
        for _ in sizes[1:]:
            values = [each for inner in values for each in inner]
        return tuple(sizes), [int(each) for each in values] if sizes else []
    except (TypeError, ValueError):
        return tuple(sizes), []
