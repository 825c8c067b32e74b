"""Modules and tensors of torch as abstract values, by the arguments of their constructors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    ChildOf,
    ModuleValue,
    ParameterValue,
    TensorValue,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Arguments: TypeAlias = "Mapping[str, object]"

_WITHOUT_PARAMETERS = frozenset(
    {
        *("Dropout", "Dropout1d", "Dropout2d", "AlphaDropout", "Identity", "Flatten", "Unflatten", "Softmax"),
        *("LogSoftmax", "ReLU", "ReLU6", "GELU", "SiLU", "Sigmoid", "Tanh", "LeakyReLU", "ELU", "Mish", "Hardswish"),
        *("Softplus", "CrossEntropyLoss", "MSELoss", "BCELoss", "BCEWithLogitsLoss", "L1Loss", "NLLLoss", "MaxPool2d"),
        *("MaxPool1d", "AvgPool1d", "AvgPool2d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "Upsample", "ZeroPad2d"),
    }
)
_TENSORS = frozenset({"ones", "zeros", "empty", "rand", "randn", "full"})
_WRAPPERS = frozenset(
    {
        *("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard", "DataParallel"),
        *("checkpoint_wrapper", "compile", "parallelize_module", "replicate", "convert_sync_batchnorm"),
    }
)
"""Functions that return the module that they are given, or one around it, without further parameters."""
_WITHOUT_MODULES = frozenset(
    {"numpy", "np", "random", "time", "json", "logging", "warnings", "wandb", "re", "datetime"}
)
_SIGNATURES: Mapping[str, tuple[tuple[str, object], ...]] = {
    "Linear": (("in_features", UNKNOWN), ("out_features", UNKNOWN), ("bias", True)),
    "Embedding": (("num_embeddings", UNKNOWN), ("embedding_dim", UNKNOWN)),
    "EmbeddingBag": (("num_embeddings", UNKNOWN), ("embedding_dim", UNKNOWN)),
    "LayerNorm": (("normalized_shape", UNKNOWN), ("eps", 1e-5), ("elementwise_affine", True), ("bias", True)),
    "RMSNorm": (("normalized_shape", UNKNOWN), ("eps", None), ("elementwise_affine", True)),
    "BatchNorm1d": (("num_features", UNKNOWN), ("eps", 1e-5), ("momentum", 0.1), ("affine", True)),
    "BatchNorm2d": (("num_features", UNKNOWN), ("eps", 1e-5), ("momentum", 0.1), ("affine", True)),
    "GroupNorm": (("num_groups", UNKNOWN), ("num_channels", UNKNOWN), ("eps", 1e-5), ("affine", True)),
    "MultiheadAttention": (("embed_dim", UNKNOWN), ("num_heads", UNKNOWN), ("dropout", 0.0), ("bias", True)),
    "TransformerEncoderLayer": (("d_model", UNKNOWN), ("nhead", UNKNOWN), ("dim_feedforward", 2048)),
    "TransformerDecoderLayer": (("d_model", UNKNOWN), ("nhead", UNKNOWN), ("dim_feedforward", 2048)),
    "TransformerEncoder": (("encoder_layer", UNKNOWN), ("num_layers", UNKNOWN), ("norm", None)),
    "TransformerDecoder": (("decoder_layer", UNKNOWN), ("num_layers", UNKNOWN), ("norm", None)),
    "Conv1d": (("in_channels", UNKNOWN), ("out_channels", UNKNOWN), ("kernel_size", UNKNOWN)),
    "Conv2d": (("in_channels", UNKNOWN), ("out_channels", UNKNOWN), ("kernel_size", UNKNOWN)),
}
_OTHER_DEFAULTS: Mapping[str, object] = {"bias": True, "groups": 1}


def library_object(path: str, positional: Sequence[object], keywords: Arguments) -> object:
    """Return the value of a call of something outside the program; unknown for what no table holds.

    Args:
        path: full name of what is called, such as ``torch.nn.Linear``.
        positional: arguments.
        keywords: likewise.
    """
    name = path.rpartition(".")[2]
    if name in _WRAPPERS:
        first = positional[0] if positional else keywords.get("module", keywords.get("model"))
        return first if isinstance(first, ModuleValue | ChildOf) else UNKNOWN_OBJECT
    if not path.startswith("torch."):
        return UNKNOWN if path.partition(".")[0] in _WITHOUT_MODULES else UNKNOWN_OBJECT
    return _torch_object(name, positional, keywords)


def _torch_object(name: str, positional: Sequence[object], keywords: Arguments) -> object:
    if name in _WITHOUT_PARAMETERS:
        return ModuleValue(name=name)
    if name in _TENSORS:
        return TensorValue(
            _elements([keywords["size"]] if "size" in keywords else positional[: _ends(name, positional)])
        )
    if name == "Parameter":
        data = positional[0] if positional else keywords.get("data")
        return ParameterValue(data.size if isinstance(data, TensorValue) else None)
    if name in _CONTAINERS:
        return _CONTAINERS[name](positional, keywords)
    if name in _SIGNATURES:
        signature = _SIGNATURES[name]
        names = [each for each, _ in signature]
        given = {**_OTHER_DEFAULTS, **dict(signature), **dict(zip(names, positional, strict=False)), **keywords}
        return _module(name, given)
    return UNKNOWN_OBJECT if name[:1].isupper() else UNKNOWN  # functions of torch give tensors


def _ends(name: str, positional: Sequence[object]) -> int:
    """Return the number of positional arguments that are sizes: all but the value of ``torch.full``."""
    return 1 if name == "full" else len(positional)


def _elements(sizes: Sequence[object]) -> int | None:
    total = 1
    for size in sizes:
        each = _elements(size) if isinstance(size, tuple | list) else size
        if not isinstance(each, int):
            return None
        total *= each
    return total if sizes else None


def _module(name: str, given: Arguments) -> ModuleValue:
    module = ModuleValue(name=name)
    if name in _COPIES:
        _add_copies(module, given)
    else:
        sizes = _SIZES[name](given)
        module.attributes |= {key: ParameterValue(size) for key, size in sizes.items()}
        module.attributes |= {key: value for key, value in given.items() if key not in sizes}
    return module


def _product(*sizes: object) -> int | None:
    return _elements(sizes)


def _plus(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _with_bias(weight: int | None, bias: object, size: object) -> dict[str, int | None]:
    if isinstance(bias, bool) or bias is None:
        return {"weight": weight, "bias": _product(size)} if bias else {"weight": weight}
    return {"weight": weight, "bias": None}


def _linear(given: Arguments) -> dict[str, int | None]:
    weight = _product(given["in_features"], given["out_features"])
    return _with_bias(weight, given["bias"], given["out_features"])


def _embedding(given: Arguments) -> dict[str, int | None]:
    return {"weight": _product(given["num_embeddings"], given["embedding_dim"])}


def _layer_norm(given: Arguments) -> dict[str, int | None]:
    if given["elementwise_affine"] is False:
        return {}
    shape = given["normalized_shape"]
    return _with_bias(_product(shape), given["bias"], shape)


def _rms_norm(given: Arguments) -> dict[str, int | None]:
    return {} if given["elementwise_affine"] is False else {"weight": _product(given["normalized_shape"])}


def _channel_norm(given: Arguments) -> dict[str, int | None]:
    channels = given.get("num_channels", given.get("num_features"))
    return {} if given["affine"] is False else {"weight": _product(channels), "bias": _product(channels)}


def _attention(given: Arguments) -> dict[str, int | None]:
    width = given["embed_dim"]
    inputs = {"in_proj_weight": _product(3, width, width), "out_proj_weight": _product(width, width)}
    other = given.get("kdim") is not None or given.get("vdim") is not None or given.get("add_bias_kv")
    if other or given["bias"] not in {True, False}:
        return {"weight": None}
    return {**inputs, "in_proj_bias": _product(3, width), "out_proj_bias": _product(width)} if given["bias"] else inputs


def _block(given: Arguments, *, attentions: int) -> dict[str, int | None]:
    """Return the parameters of a layer of ``torch.nn.Transformer``."""
    width, inner, bias = given["d_model"], given["dim_feedforward"], given["bias"]
    weights = _plus(_product(attentions * 4, width, width), _product(2, width, inner), _product(attentions + 1, width))
    biases = _plus(_product(attentions * 4, width), _product(inner), _product(width), _product(attentions + 1, width))
    return {"weight": weights, **({"bias": biases} if bias is True else {} if bias is False else {"bias": None})}


def _convolution(given: Arguments, *, dimensions: int) -> dict[str, int | None]:
    kernel, groups = given["kernel_size"], given["groups"]
    kernel = [kernel] * dimensions if isinstance(kernel, int) else kernel
    whole = _product(given["in_channels"], given["out_channels"], kernel)
    weight = whole // groups if whole is not None and isinstance(groups, int) and groups > 0 else None
    return _with_bias(weight, given["bias"], given["out_channels"])


_SIZES: Mapping[str, Callable[[Arguments], dict[str, int | None]]] = {
    "Linear": _linear,
    "Embedding": _embedding,
    "EmbeddingBag": _embedding,
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    "BatchNorm1d": _channel_norm,
    "BatchNorm2d": _channel_norm,
    "GroupNorm": _channel_norm,
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": lambda given: _block(given, attentions=1),
    "TransformerDecoderLayer": lambda given: _block(given, attentions=2),
    "Conv1d": lambda given: _convolution(given, dimensions=1),
    "Conv2d": lambda given: _convolution(given, dimensions=2),
}
_COPIES = frozenset({"TransformerEncoder", "TransformerDecoder"})


def _add_copies(module: ModuleValue, given: Arguments) -> None:
    layer, count = given.get("encoder_layer", given.get("decoder_layer")), given["num_layers"]
    size = layer.n_params() if isinstance(layer, ModuleValue) else None
    module.attributes["weight"] = ParameterValue(_product(count, size))
    if isinstance(given["norm"], ModuleValue):
        module.attributes["norm"] = given["norm"]
    elif given["norm"] is not None:
        module.is_open = True


def _sequence(positional: Sequence[object], keywords: Arguments) -> ModuleValue:
    del keywords
    entries = positional
    if len(positional) == 1 and isinstance(positional[0], list | tuple | dict):
        entries = list(positional[0].values()) if isinstance(positional[0], dict) else list(positional[0])
    return _container("Sequential", entries)


def _dictionary(positional: Sequence[object], keywords: Arguments) -> ModuleValue:
    del keywords
    table = positional[0] if positional else {}
    module = _container("ModuleDict", table.values() if isinstance(table, dict) else [UNKNOWN])
    if isinstance(table, dict):
        module.attributes |= {str(name): value for name, value in table.items()}
    return module


def _container(name: str, entries: object) -> ModuleValue:
    items = list(entries) if isinstance(entries, list | tuple | type({}.values())) else [UNKNOWN]
    return ModuleValue(name=name, items=items, is_open=any(isinstance(each, Unknown) for each in items))


_CONTAINERS: Mapping[str, Callable[[Sequence[object], Arguments], ModuleValue]] = {
    "Sequential": _sequence,
    "ModuleList": _sequence,
    "ModuleDict": _dictionary,
    "Module": lambda _, __: ModuleValue(name="Module"),
}
FUNCTIONS: Mapping[str, Callable[..., object]] = {
    f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "sqrt", "log", "log2", "prod", "gcd", "exp")
}
"""Pure functions of the standard library that constructors use."""
