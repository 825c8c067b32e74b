"""Pooling factors of embedding tables: mean rows that one sample looks up, observed in the first training forwards.

The rows are counted in the jagged tensors that enter TorchRec's embedding modules on this rank.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.embedding_modules import embedding_modules, is_keyed_jagged, table_configs
from torchx_cubicml.recorder.model.embeddings import MAX_TABLES
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.values import Value

_FORWARDS = 32  # of each module; then its hook is removed


class PoolingObserver:
    """Counts of looked-up rows in the embedding modules of a model.

    Args:
        root: the model.
        guard: wraps each hook, so that a failure never reaches the training.
    """

    def __init__(self, root: nn.Module, guard: Guard) -> None:
        from torch import is_grad_enabled

        self._is_grad_enabled: Callable[[], bool] = is_grad_enabled
        self._modules: list[_ModuleLookups] = []
        self._removers: list[Callable[[], None]] = []
        modules = embedding_modules(root)
        if sum(len(table_configs(module)) for module in modules) > MAX_TABLES:
            return
        for module in modules:
            lookups = _ModuleLookups([tuple(config.feature_names) for config in table_configs(module)])
            hook = ModuleHook(guard(partial(self._before_forward, lookups)))
            lookups.remove = module.register_forward_pre_hook(hook, with_kwargs=True).remove
            self._modules.append(lookups)

    def facts(self) -> dict[str, Value]:
        """Return the mean rows per sample of each table; empty until every module was called."""
        if not self._modules or not all(lookups.samples for lookups in self._modules):
            return {}
        return {"embedding_pooling": tuple(mean for lookups in self._modules for mean in lookups.means())}

    def release(self) -> None:
        """Remove all hooks."""
        for lookups in self._modules:
            lookups.release()

    def _before_forward(
        self, lookups: _ModuleLookups, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        if not module.training or not self._is_grad_enabled():
            return
        features = next((each for each in (*args, *kwargs.values()) if is_keyed_jagged(each)), None)
        known = False
        with suppress(AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            known = lookups.add(features)
        if not known or lookups.forwards >= _FORWARDS:
            lookups.release()


class _ModuleLookups:
    """Rows that the tables of one module look up.

    Args:
        features: names of the features of each table.
    """

    def __init__(self, features: Sequence[tuple[str, ...]]) -> None:
        self.remove: Callable[[], None] | None = None
        self.samples = self.forwards = 0
        self._features = features
        self._rows = [0] * len(features)

    def add(self, batch: Any) -> bool:
        """Count the rows of one batch; return whether its samples are known.

        Features with batch sizes of their own have no common samples.
        """
        if batch is None or batch.variable_stride_per_key():
            return False
        rows = dict(zip(batch.keys(), batch.length_per_key(), strict=True))
        counts = [sum(int(rows[name]) for name in names) for names in self._features]
        self.samples += int(batch.stride())
        self._rows = [known + count for known, count in zip(self._rows, counts, strict=True)]
        self.forwards += 1
        return True

    def means(self) -> list[float]:
        """Return the mean rows per sample of each table, to four digits."""
        return [float(f"{rows / self.samples:.4g}") for rows in self._rows]

    def release(self) -> None:
        """Remove the hook."""
        if self.remove is not None:
            self.remove()
            self.remove = None
