"""Training forwards of a step: the model is found when the training loop first calls it, and is hooked alone."""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.batch import (
    BatchReader,
    find_batch,
    layers_with_batch_second,
    loader_batch_size,
    mean_batch_size,
    output_node,
    second_size,
)
from torchx_cubicml.recorder.model.kernels import is_compiled
from torchx_cubicml.recorder.model.layers import contains_all, unwrap
from torchx_cubicml.recorder.model.live_objects import LiveObjects
from torchx_cubicml.recorder.model.megatron import megatron_facts
from torchx_cubicml.recorder.model.pipeline import read_pipeline
from torchx_cubicml.recorder.steps.deferred_hooks import DeferredForwardHook
from torchx_cubicml.recorder.steps.evaluation_passes import EvaluationWatch
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn
    from torch.autograd.graph import Node
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.steps.deferred_hooks import StepBuffer
    from torchx_cubicml.recorder.steps.pauses import Pauses
    from torchx_cubicml.recorder.steps.torch_hooks import Guard


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Samples and tokens that one step consumed in this process.

    Args:
        forwards: number of training forwards, >= 1, each with its own backward. ``None`` where they may share samples:
            several share a backward, or the parameters were written between two of them.
        samples: total over the forwards; ``None`` where unknown.
        tokens: likewise.
    """

    forwards: int | None
    samples: float | None
    tokens: float | None


class Forwards:
    """Training forwards of the model since the last step.

    A training forward runs in training mode with gradients enabled. The first module of those passed to ``watch`` that
    runs one is the model; the others lose their hooks. If it holds only some of the trained parameters, its input is
    not used as the batch.

    Args:
        guard: makes each hook harmless.
        pauses: recorder of the model's other forwards.
        requested: samples per forward of the requested config; ``None`` where unknown.
    """

    def __init__(self, guard: Guard, pauses: Pauses, *, requested: int | None = None) -> None:
        self.on_first: Callable[[], None] | None = None
        self.batch: BatchReader | None = None
        self.samples_per_forward: int | None = None
        self.tokens_per_forward: int | None = None
        self.on_training: Callable[[], None] | None = None  # called once, within the next training forward
        self.before_each: Callable[[], None] | None = None  # called before each training forward is counted
        self.on_output: Callable[[Node], None] | None = None  # called once, after the next training forward
        self.is_whole = False
        self.survey: LiveObjects | None = None  # taken when the model was chosen
        self._guard, self._pauses, self._requested = guard, pauses, requested
        self.evaluation = EvaluationWatch(pauses, guard)
        self._loaded_samples: int | None = None  # samples of a loader batch that seems split into several forwards
        self._awaits_backward = False  # the backward of a forward has not begun
        self._shares_backward = False  # or steps in between, as in LBFGS and SAM: the samples may be the same
        # A trained parameter, and its version at a step's start or a forward's end: a forward may write it, too.
        self._parameter_version: tuple[weakref.ref[nn.Parameter], int] | None = None
        self._on_backward = guard(self._begin_backward)
        self._whole_ids: set[int] = set()
        self._is_grad_enabled: Callable[[], bool] = bool
        self._model: weakref.ref[nn.Module] | None = None
        self._removers: dict[int, Callable[[], None]] = {}
        self._asked: list[Callable[[], None]] = []  # of hooks on layers, within one forward
        self._sample_size: int | None = None  # of a loader's batches
        self._mean_size: float | None = None  # likewise, where no tensor of a forward tells its samples
        self._count = 0
        self._samples: float | None = 0
        self._tokens: float | None = 0
        self._sizes: list[tuple[float | None, float | None]] = []  # of each forward
        self._is_stage = self._has_other_networks = False  # others: as a discriminator trains a generator
        self._may_have_trained = False  # the last forward ran in evaluation mode with gradients

    @property
    def model(self) -> nn.Module | None:
        """The model, once it was called and while it is alive."""
        return self._model() if self._model is not None else None

    @property
    def was_found(self) -> bool:
        """True once the model was called; it may be gone by now."""
        return self._model is not None

    def watch(self, candidates: Iterable[nn.Module], trained: Sequence[nn.Parameter]) -> None:
        """Hook candidate modules until one runs a training forward; drop all earlier candidates.

        Args:
            candidates: modules that may be the model.
            trained: all parameters of the optimizer.
        """
        from torch import is_grad_enabled

        self.release()
        self.evaluation.forget()
        self._is_grad_enabled = is_grad_enabled
        self._model = None
        self._whole_ids.clear()
        self._awaits_backward = self._shares_backward = self._has_other_networks = False
        self._parameter_version = next(((weakref.ref(each), 0) for each in trained if each.requires_grad), None)
        for module in candidates:
            self._removers[id(module)] = self._attach(module)
            # Not later: within a forward, FSDP2 replaces the parameters that the optimizer holds.
            if contains_all(module, trained):
                self._whole_ids.add(id(module))
                self.evaluation.follow(module)

    def release(self) -> None:
        """Remove all hooks."""
        self._stop_asking()
        while self._removers:
            self._removers.popitem()[1]()

    def settle(self, notes: StepBuffer) -> bool:
        """Replace the full hooks by one deferred hook; return whether enough is known of the model."""
        model = self.model
        if model is None or self._count or self.on_training is not None or self._loaded_samples is not None:
            return False
        if self._has_other_networks:  # only the full hooks can assign forwards to the right step
            return False
        self.release()
        binding = self.batch.path if self.batch is not None and not self._shares_backward else ()
        hook = DeferredForwardHook(notes, binding, self._guard, wrapped=_wrapped_in(model))
        if model._compiled_call_impl is None:
            self._removers[id(model)] = model.register_forward_pre_hook(hook, with_kwargs=True).remove
        else:
            self._removers[id(model)] = _wrap_compiled_call(model, hook)
        return True

    def rest(self) -> bool:
        """Remove the deferred hook until ``settle`` is called; return whether it can be removed."""
        model = self.model
        if model is None or model._compiled_call_impl is not None:
            return False
        self.release()
        return True

    def look_again(self) -> None:
        """Replace the deferred hook by the full hooks."""
        model = self.model
        if model is None:
            return
        self.release()
        self._removers[id(model)] = self._attach(model)
        self._hook_outputs(model)

    def work_of(self, shapes: Sequence[Sequence[int] | None]) -> Work | None:
        """Return the work of a noted step; ``None`` without a forward."""
        if not shapes or self._shares_backward:
            return Work(forwards=None, samples=None, tokens=None) if shapes else None
        samples: float | None = 0
        tokens: float | None = 0
        for shape in shapes:
            size = self.batch.sizes(shape) if self.batch is not None else None
            more, more_tokens = size if size is not None else (self._mean_size, None)
            samples, tokens = _sum(samples, more), _sum(tokens, more_tokens)
        return Work(forwards=len(shapes), samples=samples, tokens=tokens)

    def note_other_optimizer(self, optimizer: Optimizer) -> None:
        """Note a step of another optimizer; if it trains another network, drop the forwards since the last step."""
        model = self.model
        if not self._count or model is None:
            return
        own = set(map(id, model.parameters()))
        if not any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
            self._has_other_networks = True
            self._forget_step()

    def take(self) -> Work | None:
        """Return the work since the last call; ``None`` without a training forward."""
        if not self._count:
            return None
        work = Work(forwards=self._count, samples=self._samples, tokens=self._tokens)
        if self._has_other_networks:
            work = self._discriminator_work(work)
        if self._shares_backward:
            work = Work(forwards=None, samples=None, tokens=None)
        elif self._loaded_samples is not None:
            work = self._check_parts(work, self._loaded_samples)
        self._forget_step()
        return work

    def begin_anew(self) -> None:
        """Drop the forwards up to now, which steps of an unknown training have used."""
        self._forget_step()
        self._shares_backward = False

    def may_have_trained(self) -> bool:
        """Return whether the last forward may train in evaluation mode: the program may not have switched back."""
        is_possible, self._may_have_trained = self._may_have_trained, False
        return is_possible

    def _forget_step(self) -> None:
        self._count, self._samples, self._tokens = 0, 0, 0
        self._sizes.clear()
        self._awaits_backward, self._loaded_samples = False, None

    def _discriminator_work(self, work: Work) -> Work:
        """Return the work of a discriminator step: a forward over real and one over generated samples count once.

        With any other number of forwards, the real ones cannot be distinguished and the work is unknown.
        """
        if work.forwards == 1:
            return work
        if work.forwards == 2 and self._sizes[0] == self._sizes[1]:
            return Work(forwards=1, samples=self._sizes[0][0], tokens=self._sizes[0][1])
        return Work(forwards=None, samples=None, tokens=None)

    def _check_parts(self, work: Work, loaded: int) -> Work:
        """Return the work; drop its samples, now and later, if the parts do not add up to the loaded batch."""
        if work.samples is not None and work.samples % loaded == 0:
            return work
        if self.batch is not None:
            self.batch = replace(self.batch, sample_dim=None)
        self.samples_per_forward = None
        return replace(work, samples=None)

    def _attach(self, module: nn.Module) -> Callable[[], None]:
        before = ModuleHook(self._guard(self._before_forward))
        if module._compiled_call_impl is None:
            return module.register_forward_pre_hook(before, with_kwargs=True).remove
        return _wrap_compiled_call(module, before, self._guard(self._after_forward))

    def _before_forward(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._stop_asking()
        in_training_mode = unwrap(module).training  # a wrapper may be in another mode, which has no effect
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
        self._shares_backward = self._shares_backward or self._awaits_backward or self._parameter_changed()
        self._count += 1
        self._awaits_backward = not self._is_stage  # a pipeline runs several forwards ahead, each on its own samples
        if self.on_training is not None:
            callback, self.on_training = self.on_training, None
            callback()
        size = self.batch.read(args, kwargs) if self.batch is not None else None
        samples, tokens = size if size is not None else (self._mean_size, None)
        self._samples = _sum(self._samples, samples)
        self._tokens = _sum(self._tokens, tokens)
        self._sizes.append((samples, tokens))

    def _after_forward(self, module: nn.Module, args: Sequence[object], output: object) -> None:
        if self._pauses.kind:
            self._pauses.evaluated()
        if not self._awaits_backward or module is not self.model:
            return
        self._parameter_changed()
        node = output_node(output)
        if node is not None and self.on_output is not None:
            callback, self.on_output = self.on_output, None
            callback(node)
        if node is not None and not _compiles_backward():
            with suppress(AttributeError, RuntimeError):  # another kind of graph
                node.register_prehook(self._on_backward)

    def _parameter_changed(self) -> bool:
        """Return whether the parameter was written since the last call, if that was within this step."""
        parameter = self._parameter_version[0]() if self._parameter_version is not None else None
        if self._parameter_version is None or parameter is None:
            return False
        before, now = self._parameter_version[1], parameter._version
        self._parameter_version = self._parameter_version[0], now
        return self._count > 0 and now != before

    def _begin_backward(self, gradients: object) -> None:
        self._awaits_backward = False

    def _hook_outputs(self, module: nn.Module) -> None:
        if not self._is_stage and module._compiled_call_impl is None:
            hook = ModuleHook(self._guard(self._after_forward))
            self._removers[id(hook)] = module.register_forward_hook(hook).remove

    def _match_batch_size(self, batch: BatchReader, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Find the batch dimension by the loader's batch size, or else by the requested one."""
        self.batch = batch.agreeing(self._sample_size, args, kwargs)
        if self._sample_size is None:
            matched = batch.agreeing(self._requested, args, kwargs)
            self.batch = matched if matched.sample_dim is not None else batch  # the script may not follow the request
        size = self.batch.read(args, kwargs)
        self._loaded_samples = self._sample_size if size is not None and size[0] != self._sample_size else None

    def _choose(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._model = weakref.ref(module)
        self.evaluation.follow(module)
        for key in [key for key in self._removers if key != id(module)]:
            self._removers.pop(key)()
        self.survey = LiveObjects()
        with self.survey.as_source():
            pipeline = read_pipeline()
            self._sample_size = loader_batch_size()
            self._mean_size = mean_batch_size(self._sample_size)
        # Every stage of a pipeline receives all samples of a batch, and one batch is in the pipeline at a time.
        stages = pipeline.stages.values() if pipeline is not None else ()
        self._is_stage = any(module is stage for stage in stages) or megatron_facts().get("pp_degree", 1) != 1
        self.is_whole = id(module) in self._whole_ids or self._is_stage
        self.batch = find_batch(args, kwargs) if self.is_whole else None
        if self.batch is not None:
            self._match_batch_size(self.batch, args, kwargs)
        self._hook_outputs(module)
        if self.batch is not None and self._sample_size is None:
            self._ask_layers(module, self.batch.shape(args, kwargs), args, kwargs)
        self._read_sizes(self.batch.shape(args, kwargs) if self.batch is not None else ())

    def _read_sizes(self, shape: Sequence[int]) -> None:
        size = self.batch.sizes(shape) if self.batch is not None else None
        self.samples_per_forward, self.tokens_per_forward = size if size is not None else (self._sample_size, None)

    def _ask_layers(
        self, module: nn.Module, shape: Sequence[int], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        """Find the batch dimension by the first layer within this forward that takes the batch second."""

        def note(_layer: nn.Module, inputs: Sequence[object], others: Mapping[str, object]) -> None:
            self._stop_asking()
            size = second_size(inputs, others)
            if self.batch is None or size is None:
                return
            self.batch = self.batch.with_second(size, self._requested, shape)
            self._read_sizes(shape)
            if self._count == 1:  # this forward, which was counted before
                self._samples, self._tokens = self.samples_per_forward, self.tokens_per_forward
                self._sizes = [(self._samples, self._tokens)]

        layers = layers_with_batch_second(module)
        if module in layers:
            note(module, args, kwargs)
        elif layers and not is_compiled(module):
            hook = ModuleHook(self._guard(note))
            self._asked = [each.register_forward_pre_hook(hook, with_kwargs=True).remove for each in layers]

    def _stop_asking(self) -> None:
        while self._asked:
            self._asked.pop()()


def _wrapped_in(model: nn.Module) -> nn.Module | None:
    inner = unwrap(model)
    return None if inner is model else inner


def _wrap_compiled_call(
    module: nn.Module, before: ModuleHook, after: Callable[..., None] | None = None
) -> Callable[[], None]:
    """Wrap the compiled call of a module that was compiled in place; a regular hook would be compiled into it."""
    compiled: Any = module._compiled_call_impl
    reference = weakref.ref(module)

    def call(*args: Any, **kwargs: Any) -> object:
        before(reference(), args, kwargs)  # type: ignore[arg-type]  # a module that is called is alive
        output = compiled(*args, **kwargs)
        if after is not None:
            after(reference(), args, output)
        return output

    def restore() -> None:
        now = reference()
        if now is not None and now._compiled_call_impl is call:
            now._compiled_call_impl = compiled

    call.of_torchx_cubicml_around = compiled  # type: ignore[attr-defined]  # a mark on a function
    module._compiled_call_impl = call
    return restore


def _sum(one: float | None, other: float | None) -> float | None:
    return one + other if one is not None and other is not None else None


def _compiles_backward() -> bool:
    """Return whether backward passes are compiled; a hook would trigger a recompilation."""
    config, state = (sys.modules.get(f"torch._dynamo.{name}") for name in ("config", "compiled_autograd"))
    return bool(getattr(config, "compiled_autograd", False) or getattr(state, "compiled_autograd_enabled", False))
