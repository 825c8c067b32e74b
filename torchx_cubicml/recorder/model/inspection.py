"""Inspection of the model: hooks within its first training forward, and facts read at the first real step."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.deepspeed_engine import engine_parameters
from torchx_cubicml.recorder.model.facts import HookObservations, observe, observe_stage
from torchx_cubicml.recorder.model.heads import attention_calls
from torchx_cubicml.recorder.model.kernels import attention_kernel, is_compiled
from torchx_cubicml.recorder.model.keyed_optimizers import is_sharded_tensor
from torchx_cubicml.recorder.model.layers import (
    contains_all,
    modules_around,
    networks_with,
    outermost,
    repeated_blocks,
    unwrap,
)
from torchx_cubicml.recorder.model.live_objects import LiveObjects
from torchx_cubicml.recorder.model.operations import differentiated_operations
from torchx_cubicml.recorder.model.pipeline import STAGE_FACTS, encode_stage, read_pipeline
from torchx_cubicml.recorder.model.pooling import PoolingObserver
from torchx_cubicml.recorder.model.precision import PrecisionProbe, autocast_type
from torchx_cubicml.recorder.model.size import count_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.autograd.graph import Node
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.model.heads import Attention
    from torchx_cubicml.recorder.model.pipeline import Pipeline
    from torchx_cubicml.recorder.steps.clipping import Clipping
    from torchx_cubicml.recorder.steps.forwards import Forwards, Work
    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.values import Value

_COUNTS = ("n_params", "n_trainable_params")
_WRAPPING_FACTS = frozenset({"sharding_strategy", "dp_degree", "dp_replicate_degree", "dp_shard_degree"})


class ModelInspection:
    """Facts of one training's model, empty until they are read.

    ``encoded_stage_facts`` holds the encoded facts of this rank's pipeline stages, by stage number.

    Args:
        forwards: observed forwards, which reveal the model.
        clipping: observed clipping of gradients.
        guard: wraps each hook, so that a failure never reaches the training.
        world_size: of the job.
        requested: requested config; a fact of it that has one value per repeated layer is read so.
    """

    def __init__(
        self,
        forwards: Forwards,
        clipping: Clipping,
        guard: Guard,
        *,
        world_size: int,
        requested: Mapping[str, Value] | None = None,
    ) -> None:
        self.facts: dict[str, Value] = {}
        self.n_stages = 0
        self.encoded_stage_facts: dict[int, str] = {}
        self._forwards = forwards
        self._clipping = clipping
        self._guard = guard
        self._world_size = world_size
        self._per_layer = {name for name, value in (requested or {}).items() if isinstance(value, tuple)}
        self._probe: PrecisionProbe | None = None
        self._pooling: PoolingObserver | None = None
        self._autocast_type = ""
        self._attention_kernel = ""
        self._attention_calls: frozenset[Attention | None] = frozenset()
        self._networks: list[weakref.ref[nn.Module]] = []  # the model, and others that are trained with it, unwrapped

    def install_probe(self) -> None:
        """Inspect the model within a training forward, and put hooks on its layers until the facts are read."""
        model = self._forwards.model
        if model is None or self.facts:
            return
        self._pooling = PoolingObserver(model, self._guard)
        self._autocast_type = autocast_type(model)
        blocks = repeated_blocks(model)
        self._forwards.on_output = lambda node: self._read_attention_kernel(node, len(blocks))
        if blocks and not is_compiled(model):
            self._probe = PrecisionProbe(blocks, self._guard, on_recomputed=self._read_recomputed)

    def read(self, leading: Optimizer | None, work: Work | None) -> None:
        """Read the facts.

        Args:
            leading: optimizer that steps the model; ``None`` if none is known.
            work: of the first step; ``None`` if no step was observed.
        """
        survey, self._forwards.survey = self._forwards.survey or LiveObjects(), None
        with survey.as_source():
            self._read(leading, work)

    def add_networks(self, optimizer: Optimizer | None) -> None:
        """Count the networks of an optimizer that are not counted yet, such as a critic beside an actor."""
        networks = [network for each in self._networks if (network := each()) is not None]
        if "n_params" not in self.facts or self.n_stages or len(networks) < len(self._networks):
            return
        known = {id(parameter) for network in networks for parameter in network.parameters()}
        added = networks_with([each for each in parameters_of(optimizer) if id(each) not in known])
        if not added:
            return
        self._networks += [weakref.ref(unwrap(each)) for each in added]
        counts = zip(_COUNTS, count_parameters(*networks), count_parameters(*networks, *added), strict=True)
        facts = dict(self.facts)
        for name, before, after in counts:
            count = facts.pop(name, None)
            if isinstance(count, int) and before is not None and after is not None:
                facts[name] = count + after - before
        self.facts = facts

    def known_facts(self) -> dict[str, Value]:
        """Return the facts with those that are still being observed."""
        return self.facts | self._pooling.facts() if self.facts and self._pooling is not None else self.facts

    def release(self) -> None:
        """Remove all hooks from the layers."""
        if self._pooling is not None:
            self._pooling.release()
        if self._probe is not None:
            self._probe.release()

    def _read(self, leading: Optimizer | None, work: Work | None) -> None:
        model = self._forwards.model if self._forwards.is_whole else None
        # A trainer may call the user's module through a wrapper that is itself in evaluation mode, as Lightning does.
        model = outermost(model) if model is not None else _smallest_module_with(parameters_of(leading))
        seen = self._observations(work)
        if model is None:
            return
        self._networks = [weakref.ref(unwrap(model))]
        pipeline = read_pipeline()
        world_size = _ranks_in_training(self._world_size)
        facts = observe(model, leading, seen, world_size=world_size, pipeline=pipeline)
        if world_size != self._world_size:
            facts["world_size"] = world_size
        if leading is None and facts.get("sharding_strategy") == "NONE":  # the model may be wrapped later
            facts = {name: value for name, value in facts.items() if name not in _WRAPPING_FACTS}
        self.facts = facts
        if pipeline is not None:
            self._encode_stages(pipeline)
        self.add_networks(leading)

    def _observations(self, work: Work | None) -> HookObservations:
        seen = HookObservations(
            forwards=work.forwards if work is not None else None,
            samples=self._forwards.samples_per_forward,
            seq_len=self._seq_len(),
            autocast_type=self._autocast_type,
            attention_kernel=self._attention_kernel,
            attention_calls=self._attention_calls,
            clipping=self._clipping.facts(),
            per_layer=self._per_layer,
        )
        if self._probe is None:
            return seen
        probe, self._probe = self._probe, None
        probe.release()
        return replace(
            seen,
            autocast_type=probe.autocast_type or seen.autocast_type,
            layer_autocast=probe.layer_autocast,
            activation_checkpointing=self._checkpointing(probe) if work is not None else "",
            n_checkpointed=probe.n_checkpointed if work is not None else None,
        )

    def _checkpointing(self, probe: PrecisionProbe) -> str | tuple[str, ...]:
        return probe.layer_words if "activation_checkpointing" in self._per_layer else probe.activation_checkpointing

    def _read_attention_kernel(self, node: Node, n_layers: int) -> None:
        kernel = attention_kernel(node, n_layers)
        self._attention_calls = attention_calls(differentiated_operations(node))
        # A softmax and products elsewhere, as of a router and its experts, are no attention.
        self._attention_kernel = kernel if kernel != "math" or self._attention_calls else ""

    def _read_recomputed(self, node: Node) -> None:
        """Read the graph of a recomputed layer, if the graph of the whole forward showed no attention."""
        if not self._attention_calls:
            self._read_attention_kernel(node, 1)

    def _encode_stages(self, pipeline: Pipeline) -> None:
        self.n_stages = pipeline.n_stages
        self.facts = {name: value for name, value in self.facts.items() if name not in STAGE_FACTS}
        self.encoded_stage_facts = {
            number: encode_stage(observe_stage(stage, world_size=self._world_size, pp_degree=pipeline.degree))
            for number, stage in pipeline.stages.items()
        }

    def _seq_len(self) -> int | None:
        samples, tokens = self._forwards.samples_per_forward, self._forwards.tokens_per_forward
        return tokens // samples if samples and tokens else None


def parameters_of(optimizer: Optimizer | None) -> list[nn.Parameter]:
    """Return all parameters that an optimizer trains: the model's own, if DeepSpeed hands it partitions of them."""
    if held := engine_parameters(optimizer):
        return held
    groups = optimizer.param_groups if optimizer is not None else []
    return [each for group in groups for each in group["params"] if not is_sharded_tensor(each)]


def _smallest_module_with(parameters: list[nn.Parameter]) -> nn.Module | None:
    """Return the smallest module with all of the parameters, or the largest with some, in its outermost wrapper."""
    around = modules_around(parameters)
    whole = (module for module in around if parameters and contains_all(module, parameters))
    smallest = next(whole, around[-1] if around else None)
    if smallest is None:
        return None
    return outermost(smallest, around)


def _ranks_in_training(of_job: int) -> int:
    """Return the number of ranks that train; a single process may have started others itself, as Lightning does."""
    from torch import distributed

    if of_job > 1 or not (distributed.is_available() and distributed.is_initialized()):
        return of_job
    return distributed.get_world_size()
