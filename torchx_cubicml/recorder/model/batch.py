"""Batch size of one forward pass, read from the arguments of the model's forward."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter, methodcaller
from typing import TYPE_CHECKING, Any, TypeAlias

from torchx_cubicml.recorder.model.embedding_modules import is_keyed_jagged
from torchx_cubicml.recorder.model.live_objects import live_instances_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn
    from torch.autograd.graph import Node

    ArgumentPath: TypeAlias = tuple[int | str, ...]

_MAX_DEPTH = 3  # nesting of arguments in dictionaries and lists
_MAX_VISITED = 64
LENGTHS, OFFSETS = "._lengths", "._offsets"  # of a jagged tensor
_GRAPHS = ".ptr"  # first row of each graph of a batch, and the number of all rows
_COMPONENTS = "._nested_tensor_size()"  # int ``[samples, dimensions]`` of a nested tensor
_TOKENS = frozenset({"input_ids", "tokens", ".input_ids", ".tokens"})
_ORDER = 2  # place of the order of samples in packed sequences
_TOKEN_TYPES = frozenset({"torch.int64", "torch.int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReader:
    """Reader of the batch size from the arguments of forward.

    Args:
        path: path to the tensor: an index or name of an argument, then keys within it; ``.name`` is an attribute, and
            ``.name()`` what a method returns.
        holds_tokens: whether the tensor is int ``[samples, seq_len]`` or ``[seq_len, samples]``.
        sample_dim: dimension that counts the samples; ``None`` if unknown.
        n_keys: entries per sample where the tensor tells sizes alone, as ``[n_keys * samples]`` lengths of a jagged
            tensor (or offsets, one more); 0 for any other batch.
    """

    path: ArgumentPath
    holds_tokens: bool
    sample_dim: int | None = 0
    n_keys: int = 0

    def read(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[int | None, int | None] | None:
        """Return the samples and tokens of one forward; ``None`` if these arguments have no batch at the path."""
        return self.sizes(getattr(_follow(self.path, args, kwargs), "shape", None))

    def sizes(self, shape: Sequence[int] | None) -> tuple[int | None, int | None] | None:
        """Return the samples and tokens of a batch of this shape; ``None`` without a shape."""
        if not shape:
            return None
        if self.n_keys:
            return (shape[0] - (self.path[-1] in {OFFSETS, _GRAPHS})) // self.n_keys, None
        samples = shape[self.sample_dim] if self.sample_dim is not None and self.sample_dim < len(shape) else None
        return samples, shape[0] * shape[1] if self.holds_tokens and len(shape) == 2 else None

    def agreeing(self, size: int | None, args: Sequence[object], kwargs: Mapping[str, object]) -> BatchReader:
        """Return a reader whose sample dimension matches a known batch size; it is ``None`` if no single one matches.

        Args:
            size: samples of a batch as loaded, which may reach forward in equal parts; ``None`` if unknown.
            args: of the forward in which this batch was found.
            kwargs: likewise.
        """
        shape = getattr(_follow(self.path, args, kwargs), "shape", ())
        if self.n_keys:
            return self
        if size is None or not shape or shape[0] == size:
            return self
        # A second dimension of one is a feature or a channel more often than a batch.
        is_second = len(shape) in {2, 3} and 1 < size == shape[1]
        is_part = shape[0] > 0 and size % shape[0] == 0
        if is_second == is_part:
            return replace(self, sample_dim=None)
        return self if is_part else replace(self, sample_dim=1)

    def with_second(self, size: int, requested: int | None, shape: Sequence[int]) -> BatchReader:
        """Return a reader that agrees with a layer whose second dimension counts ``size`` samples.

        The sample dimension is ``None`` where that is the second one of the input, too, and a doubt is left: the first
        one is as requested, or there is one sample. A model may be given the batch first where it takes it second.

        Args:
            size: of the layer's second dimension.
            requested: samples per forward of the requested config; ``None`` where unknown.
            shape: of the input.
        """
        first, second = (*shape[:2], 0, 0)[:2]
        if self.n_keys or len(shape) not in {2, 3} or first == second or size not in {first, second}:
            return self
        if size == first:
            return replace(self, sample_dim=0)
        return replace(self, sample_dim=None if requested == first or size == 1 != requested else 1)

    def shape(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[int, ...]:
        """Return the shape of the batch of one forward; empty where these arguments have none at the path."""
        return tuple(getattr(_follow(self.path, args, kwargs), "shape", ()))


def layers_with_batch_second(model: nn.Module) -> list[nn.Module]:
    """Return the layers that take ``[seq_len, batch, features]``: recurrent ones and attention by their default."""
    from torch import nn

    kinds = (nn.RNNBase, nn.MultiheadAttention)
    return [each for each in model.modules() if isinstance(each, kinds) and not each.batch_first]


def second_size(args: Sequence[object], kwargs: Mapping[str, object]) -> int | None:
    """Return the samples of the input of such a layer; ``None`` where it holds no batch."""
    first: Any = next(iter([*args, *kwargs.values()]), None)
    if _is_packed(first):
        return int(first.batch_sizes[0])
    shape: Sequence[int] = getattr(first, "shape", ())
    return int(shape[1]) if len(shape) == 3 else None


def find_batch(args: Sequence[object], kwargs: Mapping[str, object]) -> BatchReader | None:
    """Find the batch among the arguments of a forward; return ``None`` if no tensor has a batch dimension.

    A tensor of integers ``[samples, seq_len]`` holds tokens if its name says so or if it comes first. Otherwise the
    first tensor is the batch, and the number of tokens is unknown. If there is no tensor, a jagged one of TorchRec is
    the batch. Rows of a graph are no samples, so there is none beside a list of edges, unless a batch of graphs tells
    where each begins. Packed sequences tell their samples if they tell their order.
    """
    packed = next((path for path, value in _leaves(args, kwargs) if _is_packed(value)), None)
    if packed is not None:
        order = getattr(_follow(packed, args, kwargs), "sorted_indices", None)
        return None if order is None else BatchReader(path=(*packed, _ORDER), holds_tokens=False)
    listed = next(((*path, name) for path, value in _leaves(args, kwargs) if (name := _list_of(value))), None)
    if listed is not None:
        return BatchReader(path=listed, holds_tokens=False, n_keys=1)
    tensors = [(path, tensor) for path, tensor in _tensors(args, kwargs) if _has_batch_dimension(tensor)]
    named = [path for path, tensor in tensors if path[-1] in _TOKENS and _looks_like_tokens(tensor)]
    if named:
        return BatchReader(path=named[0], holds_tokens=True)
    if not named and _has_edges([tensor for _, tensor in tensors]):
        return None
    if tensors:
        path, tensor = tensors[0]
        return BatchReader(path=path, holds_tokens=_looks_like_tokens(tensor))
    return next((reader for path, value in _leaves(args, kwargs) if (reader := _jagged_reader(path, value))), None)


def _jagged_reader(path: ArgumentPath, value: Any) -> BatchReader | None:
    """Return a reader of the samples of a jagged tensor; ``None`` if its features have batch sizes of their own."""
    if not is_keyed_jagged(value) or value.variable_stride_per_key() or not value.keys():
        return None
    name = LENGTHS if getattr(value, LENGTHS[1:], None) is not None else OFFSETS
    return BatchReader(path=(*path, name), holds_tokens=False, n_keys=len(value.keys()))


def output_node(output: object) -> Node | None:
    """Return the autograd node of the first tensor in a forward's output that has one; ``None`` without any."""
    return next((tensor.grad_fn for _, tensor in _tensors((output,), {}) if tensor.grad_fn is not None), None)


def loader_batch_size() -> int | None:
    """Return the batch size common to all live DataLoaders; ``None`` if they differ or there is none."""
    sizes = {_batch_size(loader) for loader in live_instances_of("torch.utils.data", "DataLoader")}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) and size > 0 else None


def _batch_size(loader: object) -> object:
    own = getattr(loader, "batch_size", None)
    return own if own is not None else getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def mean_batch_size(size: int | None) -> float | None:
    """Return the mean samples of a batch where loaders yield ``size``: the last one of an epoch may be smaller.

    The loader with most batches counts; ``size`` is returned where none tells its length.
    """
    if size is None:
        return None
    lengths = [(0, 0)]
    loaders: list[Any] = live_instances_of("torch.utils.data", "DataLoader")
    for loader in loaders:
        with suppress(Exception):  # the program's own code tells a length, or nothing does
            n_samples = len(loader.sampler)  # an endless one has no length
            lengths.append((len(loader), n_samples))
    n_batches, n_samples = max(lengths)
    return size if not n_batches else min(size, n_samples / n_batches)


def _list_of(value: Any) -> str:
    """Return the last key to the tensor in which a nested tensor, or a batch of graphs, has a row for each sample."""
    if getattr(value, "is_nested", False):
        return _COMPONENTS if str(value.layout) == "torch.strided" else ""
    is_graph = getattr(value, "edge_index", None) is not None
    return _GRAPHS if is_graph and len(getattr(getattr(value, _GRAPHS[1:], None), "shape", ())) == 1 else ""


def _is_packed(value: object) -> bool:
    return type(value).__name__ == "PackedSequence"


def _has_edges(tensors: Sequence[Tensor]) -> bool:
    """Return whether integers ``[2, edges]``, or a square sparse matrix, stand behind rows of another number."""
    if not tensors or not tensors[0].is_floating_point():
        return False
    rows = tensors[0].shape[0]
    others = [(each, tuple(each.shape)) for each in tensors[1:] if len(each.shape) == 2]
    pairs = any(shape[0] == 2 != rows and str(each.dtype) in _TOKEN_TYPES for each, shape in others)
    return pairs or any(shape == (rows, rows) and str(each.layout) != "torch.strided" for each, shape in others)


def _looks_like_tokens(tensor: Tensor) -> bool:
    return not tensor.is_nested and len(tensor.shape) == 2 and tensor.shape[1] > 1 and str(tensor.dtype) in _TOKEN_TYPES


def _has_batch_dimension(tensor: Tensor) -> bool:
    # A one-dimensional tensor of integers may be samples packed into one long sequence.
    return len(tensor.shape) > 1 or (len(tensor.shape) == 1 and tensor.is_floating_point())


def _tensors(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[ArgumentPath, Tensor]]:
    from torch import Tensor

    return ((path, value) for path, value in _leaves(args, kwargs) if isinstance(value, Tensor))


def _leaves(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[ArgumentPath, object]]:
    pending: list[tuple[ArgumentPath, object]] = [((index,), value) for index, value in enumerate(args)]
    pending += [((name,), value) for name, value in kwargs.items()]
    for _ in range(_MAX_VISITED):
        if not pending:
            return
        path, value = pending.pop(0)
        entries = _entries(value) if len(path) < _MAX_DEPTH else []
        pending[:0] = [((*path, key), inner) for key, inner in entries]
        if not entries:
            yield path, value


def _entries(value: object) -> list[tuple[int | str, object]]:
    if _is_packed(value):
        return []
    if isinstance(value, dict):
        return [(key, inner) for key, inner in value.items() if isinstance(key, str) and key[:1] != "."]
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    names = getattr(type(value), "__dataclass_fields__", ())
    return [(f".{name}", getattr(value, name, None)) for name in names]


def entry_getter(key: int | str) -> Callable[[Any], Any]:
    """Return the function that gets the entry at one key of a path from its container.

    >>> entry_getter("x")({"x": 3}), entry_getter(".real")(4j), entry_getter(".bit_length()")(4)
    (3, 0.0, 3)
    """
    if isinstance(key, str) and key[:1] == "." and key[-2:] == "()":
        return methodcaller(key[1:-2])
    return attrgetter(key[1:]) if isinstance(key, str) and key[:1] == "." else itemgetter(key)


def _follow(path: ArgumentPath, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    first, *rest = path
    try:
        value = args[first] if isinstance(first, int) else kwargs[first]
        for key in rest:
            value = entry_getter(key)(value)
    except (AttributeError, IndexError, KeyError, NotImplementedError, TypeError):
        return None
    return value
