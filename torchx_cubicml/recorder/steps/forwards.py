"""Counts training forwards: finds the model as the training loop calls it, and watches that one module alone."""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.batch import BatchReader, find_batch, first_node, loader_batch_size
from torchx_cubicml.recorder.model.layers import holds_all, unwrap
from torchx_cubicml.recorder.model.live_objects import LiveObjects
from torchx_cubicml.recorder.model.pipeline import read_pipeline
from torchx_cubicml.recorder.steps.deferred_hooks import NotingHook
from torchx_cubicml.recorder.steps.evaluation import EvaluationWatch
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn
    from torch.autograd.graph import Node
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.steps.deferred_hooks import Notes
    from torchx_cubicml.recorder.steps.pauses import Pauses
    from torchx_cubicml.recorder.steps.torch_hooks import Guard


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step consumed in this process.

    Args:
        forwards: training forwards, >= 1, each with a backward of its own; ``None`` where they may be of the same
            samples: several share a backward, or the parameters were written between two of them.
        samples: in all of them; ``None`` where unknown.
        tokens: likewise.
    """

    forwards: int | None
    samples: int | None
    tokens: int | None


class Forwards:
    """Training forwards of the model since the last step.

    A forward is of training when the module is in training mode and gradients are on. Of the modules handed to
    ``watch``, the first that is called so is the model; the others are let go then. Where it turns out to be a part of
    what is trained, its input is not taken for the batch.

    Args:
        guard: for each hook.
        pauses: to which forwards of the model go that are none of training.
        requested: samples per forward that were asked for; ``None`` where unknown.
    """

    def __init__(self, guard: Guard, pauses: Pauses, *, requested: int | None = None) -> None:
        self.on_first: Callable[[], None] | None = None
        self.batch: BatchReader | None = None
        self.samples_per_forward: int | None = None
        self.tokens_per_forward: int | None = None
        self.on_training: Callable[[], None] | None = None  # called once, within the next training forward
        self.before_each: Callable[[], None] | None = None  # called before each training forward is counted
        self.on_output: Callable[[Node], None] | None = None  # called once, after the next
        self.is_whole = False
        self.survey: LiveObjects | None = None  # of when the model was chosen
        self._guard = guard
        self._pauses = pauses
        self.evaluation = EvaluationWatch(pauses, guard)
        self._requested = requested
        self._loaded: int | None = None  # samples of a batch that seems to be handed over in parts
        self._is_stage = False
        self._is_open = False  # a forward whose backward has not begun
        self._shares_backward = False  # or steps in between, as LBFGS and SAM do: the samples may be the same
        self._written: tuple[weakref.ref[nn.Parameter], int] | None = (
            None  # a trained one, its version when a step began or a forward ended: a forward may write it too
        )
        self._on_backward = guard(self._begin_backward)
        self._whole: set[int] = set()
        self._is_grad_enabled: Callable[[], bool] = bool
        self._model: weakref.ref[nn.Module] | None = None
        self._let_go: dict[int, Callable[[], None]] = {}
        self._sample_size: int | None = None
        self._count = 0
        self._samples: int | None = 0
        self._tokens: int | None = 0
        self._sizes: list[tuple[int | None, int | None]] = []  # of each forward
        self._trains_others = False  # as a discriminator trains a generator
        self._may_have_trained = False  # the last forward, in evaluation mode with gradients

    @property
    def model(self) -> nn.Module | None:
        """The model, once it was called and while it lives."""
        return self._model() if self._model is not None else None

    @property
    def was_found(self) -> bool:
        """Whether the model was called, though it may be gone by now."""
        return self._model is not None

    def watch(self, candidates: Iterable[nn.Module], trained: Sequence[nn.Parameter]) -> None:
        """Wait for the first training forward of one of the modules, in place of all that was watched before.

        Args:
            candidates: any of which may be the model.
            trained: all parameters that the optimizer steps.
        """
        from torch import is_grad_enabled

        self.release()
        self.evaluation.forget()
        self._is_grad_enabled = is_grad_enabled
        self._model = None
        self._whole.clear()
        self._is_open = self._shares_backward = self._trains_others = False
        self._written = next(((weakref.ref(each), 0) for each in trained if each.requires_grad), None)
        for module in candidates:
            self._let_go[id(module)] = self._attach(module)
            # Not later: within a forward FSDP2 puts other parameters in the place of those that the optimizer knows.
            if holds_all(module, trained):
                self._whole.add(id(module))
                self.evaluation.follow(module)

    def release(self) -> None:
        """Take every hook away."""
        while self._let_go:
            self._let_go.popitem()[1]()

    def settle(self, notes: Notes) -> bool:
        """Leave one hook on the model, that notes; return whether there is a model, and enough is known of it."""
        model = self.model
        if model is None or self._count or self.on_training is not None or self._loaded is not None:
            return False
        if self._trains_others:  # which forwards are of whose step shows only while everything is seen
            return False
        self.release()
        place = self.batch.place if self.batch is not None and not self._shares_backward else ()
        hook = NotingHook(notes, place, self._guard, wrapped=_wrapped_in(model))
        if model._compiled_call_impl is None:
            self._let_go[id(model)] = model.register_forward_pre_hook(hook, with_kwargs=True).remove
        else:
            self._let_go[id(model)] = _attach_outside(model, hook)
        return True

    def rest(self) -> bool:
        """Take the hook that notes off the model until ``settle``; return whether that can be."""
        model = self.model
        if model is None or model._compiled_call_impl is not None:
            return False
        self.release()
        return True

    def look_again(self) -> None:
        """Put the hooks that see everything back in the place of the one that notes."""
        model = self.model
        if model is None:
            return
        self.release()
        self._let_go[id(model)] = self._attach(model)
        self._see_outputs(model)

    def work_of(self, shapes: Sequence[Sequence[int] | None]) -> Work | None:
        """Return what a step that was noted has consumed; ``None`` without a forward."""
        if not shapes or self._shares_backward:
            return Work(forwards=None, samples=None, tokens=None) if shapes else None
        samples: int | None = 0
        tokens: int | None = 0
        for shape in shapes:
            size = self.batch.sizes(shape) if self.batch is not None else None
            more, more_tokens = size if size is not None else (self._sample_size, None)
            samples, tokens = _sum(samples, more), _sum(tokens, more_tokens)
        return Work(forwards=len(shapes), samples=samples, tokens=tokens)

    def trained_elsewhere(self, optimizer: Optimizer) -> None:
        """Note a step of another optimizer: where it trains another network, the forwards before it were for that."""
        model = self.model
        if not self._count or model is None:
            return
        own = set(map(id, model.parameters()))
        if not any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
            self._trains_others = True
            self._forget_step()

    def take(self) -> Work | None:
        """Return what was consumed since the last call, ``None`` without a training forward."""
        if not self._count:
            return None
        work = Work(forwards=self._count, samples=self._samples, tokens=self._tokens)
        if self._trains_others:
            work = self._of_a_pair(work)
        if self._shares_backward:
            work = Work(forwards=None, samples=None, tokens=None)
        elif self._loaded is not None:
            work = self._check_parts(work, self._loaded)
        self._forget_step()
        return work

    def may_have_trained(self) -> bool:
        """Return whether a step that ends now goes by a forward in evaluation mode, as where nobody switched back."""
        found, self._may_have_trained = self._may_have_trained, False
        return found

    def _forget_step(self) -> None:
        self._count, self._samples, self._tokens = 0, 0, 0
        self._sizes.clear()
        self._is_open, self._loaded = False, None

    def _of_a_pair(self, work: Work) -> Work:
        """Return what a step of a discriminator consumed: of a pass over what is real and one over what is made, once.

        Of other numbers of passes nobody knows which are which.
        """
        if work.forwards == 1:
            return work
        if work.forwards == 2 and self._sizes[0] == self._sizes[1]:
            return Work(forwards=1, samples=self._sizes[0][0], tokens=self._sizes[0][1])
        return Work(forwards=None, samples=None, tokens=None)

    def _check_parts(self, work: Work, loaded: int) -> Work:
        """Return the work without samples, from now on too, where the parts do not add up to what was loaded."""
        if work.samples is not None and work.samples % loaded == 0:
            return work
        if self.batch is not None:
            self.batch = replace(self.batch, samples_at=None)
        self.samples_per_forward = None
        return replace(work, samples=None)

    def _attach(self, module: nn.Module) -> Callable[[], None]:
        before = ModuleHook(self._guard(self._before_forward))
        if module._compiled_call_impl is None:
            return module.register_forward_pre_hook(before, with_kwargs=True).remove
        return _attach_outside(module, before, self._guard(self._after_forward))

    def _before_forward(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        in_training_mode = unwrap(module).training  # a wrapper may be left in another mode, which changes nothing
        if not in_training_mode or not self._is_grad_enabled():
            if module is self.model:
                self._may_have_trained = not in_training_mode and self._is_grad_enabled()
                self._pauses.evaluate(in_training_mode=in_training_mode)
            return
        self._may_have_trained = False
        self._pauses.train()
        if self._model is None:
            self._choose(module, args, kwargs)
        if self.before_each is not None:
            self.before_each()
        if not self._count and self.on_first is not None:
            self.on_first()
        self._shares_backward = self._shares_backward or self._is_open or self._was_written()
        self._count += 1
        self._is_open = not self._is_stage  # a pipeline runs several forwards ahead, each of samples of its own
        if self.on_training is not None:
            then, self.on_training = self.on_training, None
            then()
        size = self.batch.read(args, kwargs) if self.batch is not None else None
        samples, tokens = size if size is not None else (self._sample_size, None)
        self._samples = _sum(self._samples, samples)
        self._tokens = _sum(self._tokens, tokens)
        self._sizes.append((samples, tokens))

    def _after_forward(self, module: nn.Module, args: Sequence[object], output: object) -> None:
        if not self._is_open or module is not self.model:
            return
        self._was_written()
        node = first_node(output)
        if node is not None and self.on_output is not None:
            then, self.on_output = self.on_output, None
            then(node)
        if node is not None and not _compiles_backward():
            with suppress(AttributeError, RuntimeError):  # of a graph of another kind
                node.register_prehook(self._on_backward)

    def _was_written(self) -> bool:
        """Whether what is trained was written since the last call, if that was in this step."""
        parameter = self._written[0]() if self._written is not None else None
        if self._written is None or parameter is None:
            return False
        before, now = self._written[1], parameter._version
        self._written = self._written[0], now
        return self._count > 0 and now != before

    def _begin_backward(self, gradients: object) -> None:
        self._is_open = False

    def _see_outputs(self, module: nn.Module) -> None:
        if not self._is_stage and module._compiled_call_impl is None:
            hook = ModuleHook(self._guard(self._after_forward))
            self._let_go[id(hook)] = module.register_forward_hook(hook).remove

    def _agree(self, batch: BatchReader, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Find the samples where the loader, or else what was asked for, tells how many they are."""
        self.batch = batch.agreeing(self._sample_size, args, kwargs)
        if self._sample_size is None:
            asked = batch.agreeing(self._requested, args, kwargs)
            self.batch = asked if asked.samples_at is not None else batch  # a script may do as it likes
        size = self.batch.read(args, kwargs)
        self._loaded = self._sample_size if size is not None and size[0] != self._sample_size else None

    def _choose(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._model = weakref.ref(module)
        self.evaluation.follow(module)
        for key in [key for key in self._let_go if key != id(module)]:
            self._let_go.pop(key)()
        self.survey = LiveObjects()
        with self.survey.in_place_of_walks():
            pipeline = read_pipeline()
            self._sample_size = loader_batch_size()
        # Any stage of a pipeline sees the samples of the whole batch, of which there is one in the pipeline at a time.
        self._is_stage = pipeline is not None and any(module is stage for stage in pipeline.stages.values())
        self.is_whole = id(module) in self._whole or self._is_stage
        self.batch = find_batch(args, kwargs) if self.is_whole else None
        if self.batch is not None:
            self._agree(self.batch, args, kwargs)
        self._see_outputs(module)
        size = self.batch.read(args, kwargs) if self.batch is not None else None
        self.samples_per_forward, self.tokens_per_forward = size if size is not None else (self._sample_size, None)


def _wrapped_in(model: nn.Module) -> nn.Module | None:
    inner = unwrap(model)
    return None if inner is model else inner


def _attach_outside(
    module: nn.Module, before: ModuleHook, after: Callable[..., None] | None = None
) -> Callable[[], None]:
    """Put hooks around a module that was compiled in place, into which a hook of its own would be compiled."""
    compiled: Any = module._compiled_call_impl
    living = weakref.ref(module)

    def call(*args: Any, **kwargs: Any) -> object:
        before(living(), args, kwargs)  # type: ignore[arg-type]  # a module that is called lives
        output = compiled(*args, **kwargs)
        if after is not None:
            after(living(), args, output)
        return output

    def restore() -> None:
        now = living()
        if now is not None and now._compiled_call_impl is call:
            now._compiled_call_impl = compiled

    call.of_torchx_cubicml_around = compiled  # type: ignore[attr-defined]  # a mark on a function
    module._compiled_call_impl = call
    return restore


def _sum(one: int | None, other: int | None) -> int | None:
    return one + other if one is not None and other is not None else None


def _compiles_backward() -> bool:
    """Whether backward passes are compiled, which a hook would have done once more."""
    config, state = (sys.modules.get(f"torch._dynamo.{name}") for name in ("config", "compiled_autograd"))
    return bool(getattr(config, "compiled_autograd", False) or getattr(state, "compiled_autograd_enabled", False))
