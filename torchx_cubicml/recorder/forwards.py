"""Counts training forwards: finds the model as the training loop calls it, and watches that one module alone."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torchx_cubicml.recorder.batch import Batch, find_batch, loader_batch_size
from torchx_cubicml.recorder.layers import holds_all
from torchx_cubicml.recorder.pipeline import read_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn


class Guard(Protocol):
    """Makes a hook harmless: what it raises is told once and ends the recording, never the training."""

    def __call__(self, hook: Callable[..., object]) -> Callable[..., None]:
        """Return ``hook`` such that it never raises and returns nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step consumed in this process.

    Args:
        forwards: training forwards, >= 1.
        samples: in all of them; ``None`` where unknown.
        tokens: likewise.
    """

    forwards: int
    samples: int | None
    tokens: int | None


class ModuleHook:
    """A forward pre-hook that a pickled or copied module leaves behind, and that no other process must import.

    The deprecated ``torch.jit.script`` alone stumbles over it: of a module in training, script a copy.
    """

    __slots__ = ("_before",)

    def __init__(self, before: Callable[..., None]) -> None:
        self._before = before

    def __call__(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Tell of one forward."""
        self._before(module, args, kwargs)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Stand as something of the standard library that takes the same arguments and does nothing."""
        return getattr, (nullcontext(), "__exit__")


class Forwards:
    """Training forwards of the model since the last step.

    A forward is of training when the module is in training mode and gradients are on. Of the modules handed to
    ``watch``, the first that is called so is the model; the others are let go then. Where it turns out to be a part of
    what is trained, its input is not taken for the batch.

    Args:
        guard: for each hook.
    """

    def __init__(self, guard: Guard) -> None:
        self.on_first: Callable[[], None] | None = None
        self.batch: Batch | None = None
        self.samples_per_forward: int | None = None
        self.tokens_per_forward: int | None = None
        self.on_training: Callable[[], None] | None = None  # called once, within the next training forward
        self.is_whole = False
        self._guard = guard
        self._whole: set[int] = set()
        self._is_grad_enabled: Callable[[], bool] = bool
        self._model: weakref.ref[nn.Module] | None = None
        self._let_go: dict[int, Callable[[], None]] = {}
        self._sample_size: int | None = None
        self._count = 0
        self._samples: int | None = 0
        self._tokens: int | None = 0

    @property
    def model(self) -> nn.Module | None:
        """The model, once it was called and while it lives."""
        return self._model() if self._model is not None else None

    def watch(self, candidates: Iterable[nn.Module], trained: Sequence[nn.Parameter]) -> None:
        """Wait for the first training forward of one of the modules, in place of all that was watched before.

        Args:
            candidates: any of which may be the model.
            trained: all parameters that the optimizer steps.
        """
        from torch import is_grad_enabled

        self.release()
        self._is_grad_enabled = is_grad_enabled
        self._model = None
        self._whole.clear()
        for module in candidates:
            self._let_go[id(module)] = self._attach(module)
            # Not later: within a forward FSDP2 puts other parameters in the place of those that the optimizer knows.
            if holds_all(module, trained):
                self._whole.add(id(module))

    def release(self) -> None:
        """Take every hook away."""
        while self._let_go:
            self._let_go.popitem()[1]()

    def take(self) -> Work | None:
        """Return what was consumed since the last call, ``None`` without a training forward."""
        if not self._count:
            return None
        work = Work(forwards=self._count, samples=self._samples, tokens=self._tokens)
        self._count, self._samples, self._tokens = 0, 0, 0
        return work

    def _attach(self, module: nn.Module) -> Callable[[], None]:
        before = self._guard(self._before_forward)
        compiled = module._compiled_call_impl
        if compiled is None:
            return module.register_forward_pre_hook(ModuleHook(before), with_kwargs=True).remove
        living = weakref.ref(module)

        # A hook would be compiled into a module that was compiled in place: it is counted from outside.
        def call(*args: Any, **kwargs: Any) -> object:
            before(living(), args, kwargs)
            return compiled(*args, **kwargs)

        def restore() -> None:
            now = living()
            if now is not None and now._compiled_call_impl is call:
                now._compiled_call_impl = compiled

        module._compiled_call_impl = call
        return restore

    def _before_forward(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if not module.training or not self._is_grad_enabled():
            return
        if self._model is None:
            self._choose(module, args, kwargs)
        if not self._count and self.on_first is not None:
            self.on_first()
        self._count += 1
        if self.on_training is not None:
            then, self.on_training = self.on_training, None
            then()
        size = self.batch.read(args, kwargs) if self.batch is not None else None
        samples, tokens = size if size is not None else (self._sample_size, None)
        self._samples = None if samples is None or self._samples is None else self._samples + samples
        self._tokens = None if tokens is None or self._tokens is None else self._tokens + tokens

    def _choose(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._model = weakref.ref(module)
        for key in [key for key in self._let_go if key != id(module)]:
            self._let_go.pop(key)()
        pipeline = read_pipeline()
        # Any stage of a pipeline sees the samples of the whole batch, of which there is one in the pipeline at a time.
        is_stage = pipeline is not None and any(module is stage for stage in pipeline.stages.values())
        self.is_whole = id(module) in self._whole or is_stage
        self.batch = find_batch(args, kwargs) if self.is_whole else None
        if self.batch is None:
            self._sample_size = loader_batch_size()
        size = self.batch.read(args, kwargs) if self.batch is not None else None
        self.samples_per_forward, self.tokens_per_forward = size if size is not None else (self._sample_size, None)
