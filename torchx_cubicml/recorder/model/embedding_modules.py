"""Embedding modules of TorchRec within a live model, sharded and unsharded.

They are found by the names of their classes, so that TorchRec is never imported by the recorder.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

_KINDS = ("EmbeddingBagCollection", "EmbeddingCollection")  # endings of the class names
_CONFIGS = ("_embedding_bag_configs", "_embedding_configs")


def is_embedding_module(module: nn.Module) -> bool:
    """Return whether a module holds tables itself; a module around such a one does not."""
    return bool(table_configs(module))


def table_configs(module: nn.Module) -> Sequence[Any]:
    """Return TorchRec's configs of the tables that a module holds, in order; empty for any other module."""
    kind = type(module)
    if not kind.__name__.endswith(_KINDS) or not any(each.__module__.startswith("torchrec.") for each in kind.__mro__):
        return ()
    attributes = vars(module)
    configs = next((attributes[name] for name in _CONFIGS if name in attributes), ())
    return configs if isinstance(configs, list | tuple) else ()


def embedding_modules(root: nn.Module) -> list[nn.Module]:
    """Return the modules with tables in a model, in the order of ``named_modules``; each once."""
    if "torchrec" not in sys.modules:
        return []
    return [module for module in root.modules() if is_embedding_module(module)]


def sharding_plan(module: nn.Module) -> dict[str, Any]:
    """Return TorchRec's sharding of each table of a module by its name; empty for an unsharded module."""
    plan = vars(module).get("module_sharding_plan")
    return plan if isinstance(plan, dict) else {}


def sharded_parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """Return this rank's shards of tables, whose sizes are not those of the tables."""
    for module in embedding_modules(root):
        if sharding_plan(module):
            yield from module.parameters()


def table_parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """Return all parameters that are tables or shards of tables."""
    for module in embedding_modules(root):
        yield from module.parameters()


def sharded_size(module: nn.Module) -> tuple[int, int]:
    """Return the parameters of a module's sharded tables over all ranks and the trainable ones; 0 if it has none.

    A rank that holds no part of the tables cannot tell whether they are trained; they count as trained.
    """
    if not sharding_plan(module):
        return 0, 0
    size = sum(config.num_embeddings * config.embedding_dim for config in table_configs(module))
    flags = [parameter.requires_grad for parameter in module.parameters()]
    return size, size if any(flags) or not flags else 0


def is_kernel(module: nn.Module) -> bool:
    """Return whether a module is part of TorchRec's or FBGEMM's lookup, which holds the shards a second time."""
    return type(module).__module__.startswith(("torchrec.distributed.", "fbgemm_gpu."))


def is_keyed_jagged(value: object) -> bool:
    """Return whether a value is TorchRec's batch of sparse features, by the name of its class."""
    return type(value).__name__ == "KeyedJaggedTensor" and type(value).__module__.startswith("torchrec.")
