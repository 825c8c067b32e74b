"""Activation checkpointing hook: recomputes chosen repeated layers in backward when the script has no flag for it.

- The first training forward of a model with repeated layers shows which layers there are. If they are not as many as
  there are values, nothing is changed.
- A checkpointed layer runs its own forward within ``torch.utils.checkpoint`` (``use_reentrant=False``), inside of all
  wrappers, so that FSDP gathers its parameters once in backward. The random state is restored, so dropout is the same.
- Layers within FSDP or tensor parallelism communicate as they are computed again. So ranks compare their plans through
  the job's TCPStore first, and change nothing unless all plans are equal.
- Layers that are compiled one by one run their compiled call within the checkpoint. A model that is compiled as a whole
  cannot be changed.
- Nothing is changed if the script recomputes layers itself, or a second forward would change something, such as running
  statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook
from torchx_cubicml.recorder.apply.hooks import Hook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from torchx_cubicml.recorder.apply.checkpointed_compiled import CompiledLayers
    from torchx_cubicml.recorder.apply.checkpointed_forward import CheckpointedForward
    from torchx_cubicml.recorder.apply.hooks import Offer, OfferedProgram
    from torchx_cubicml.recorder.model.precision import PrecisionProbe
    from torchx_cubicml.records.values import Value

_FULL = "full"
_OWN = "the script checkpoints layers itself"
_COMPILED = "the program compiles what calls the layers, so that they cannot be checkpointed one by one"


class ActivationCheckpointingHook(Hook):
    """Hook around the forward of repeated layers, from the first training forward on.

    Its value: ``none`` or ``full`` per repeated layer, or one for all.
    """

    name = "activation_checkpointing"
    sets = "which layers are computed again in backward, which takes less memory and more time"
    values = (("none", _FULL),)
    offered = ("none", _FULL)
    per = "layer"
    fact = "activation_checkpointing"
    rivals: ClassVar = {
        "torch.compile": "the model may be compiled as a whole",
        **dict.fromkeys(
            ("utils.checkpoint", "checkpoint_wrapper", "gradient_checkpointing_enable"),
            "the script may recompute layers itself",
        ),
    }
    unmet = "the program trains no model with repeated layers"

    def _prepare(self, requested: Value) -> None:
        self._requested = requested
        self._seen: dict[int, nn.Module] = {}  # modules that were looked at, kept alive so that no id is reused
        self._words: tuple[str, ...] = ()  # of the plan, one per layer
        self._forward: CheckpointedForward | None = None
        self._probe: PrecisionProbe | None = None

    @classmethod
    def offer(cls, program: OfferedProgram) -> Offer:
        """Return both values for a script that wraps layers in FSDP, unless something rivals the hook."""
        names = [f"{name.lower()}." for name in program.names]
        is_rivalled = any(rival + "." * ("." in rival) in name for name in names for rival in cls.rivals)
        is_apt = not is_rivalled and not program.called.isdisjoint(FsdpHook.calls)
        return super().offer(program) if is_apt else ((), [])

    def install(self) -> None:
        """Look at each module that is called until a model with repeated layers trains."""
        self._look_at_calls(self._before_forward)

    def release(self) -> None:
        """Stop looking; layers that are checkpointed stay so."""
        from torchx_cubicml.recorder.model.kernels import has_compiled

        super().release()
        self._seen.clear()
        if self._probe is not None:
            self._probe.release()
            self._refusal = self._refusal or self._difference(self._probe.layer_words)
            self._probe = None
        forward = self._forward
        n_unseen = forward.n_unseen if forward is not None and not forward.objection else 0
        if has_compiled() and (n_unseen or self._refusal == self.unmet):
            self._refusal = _COMPILED
        if self._forward is not None and (self._only_checks or self._refusal):
            self._forward.remove()

    def refusal(self) -> str:
        """Return the reason why the layers are not checkpointed as requested, in words; empty if they are."""
        objection = self._forward.objection if self._forward is not None else ""
        return self._refusal or objection

    def _difference(self, observed: Sequence[str]) -> str:
        """Return in words that the script recomputes layers which the plan does not; empty if it does not."""
        planned = ("none",) * len(self._words) if self._only_checks else self._words
        is_own = any(seen != "none" and asked == "none" for seen, asked in zip(observed, planned, strict=False))
        return _OWN if is_own else ""

    def _before_forward(self, module: nn.Module, args: Sequence[object]) -> None:
        if self._words or id(module) in self._seen or not _trains(module):
            return
        from torchx_cubicml.recorder.apply.layer_plan import whole_model

        root = whole_model(module)
        if id(root) not in self._seen:
            self._plan_for(root)
        self._seen.update((id(inner), inner) for inner in (module, *root.modules()))

    def _plan_for(self, root: nn.Module) -> None:
        """Make the plan for a model, if all ranks can apply it."""
        from torchx_cubicml.recorder.apply.checkpointed_compiled import compiled_layers
        from torchx_cubicml.recorder.apply.layer_plan import per_layer, plan_digest

        layers, requested, mismatch = per_layer(root, self._requested, when="when it is first called")
        compiled = compiled_layers(root, layers)
        self._refusal = mismatch or compiled.obstacle or _obstacle(root, layers)
        digest = "" if self._refusal else plan_digest(layers, requested, is_sharded=True)
        if not self._agree(digest, "the ranks do not train the same layers"):
            if compiled.obstacle:
                self._stop_looking()  # the compiler would compile the model again once the global hook is gone
            return
        self._words = tuple(map(str, requested))
        self._stop_looking()
        self._checkpoint(layers, compiled)

    def _checkpoint(self, layers: Sequence[nn.Module], compiled: CompiledLayers) -> None:
        """Checkpoint the layers of the plan."""
        from torchx_cubicml.recorder.apply.checkpointed_compiled import CheckpointedCompiled
        from torchx_cubicml.recorder.apply.checkpointed_forward import CheckpointedForward
        from torchx_cubicml.recorder.model.layers import user_class
        from torchx_cubicml.recorder.model.precision import PrecisionProbe

        chosen = [layer for layer, word in zip(layers, self._words, strict=True) if word == _FULL]
        if not compiled.parts:  # hooks on compiled layers would have them compiled again
            self._probe = PrecisionProbe(layers, self._guard)
        checked = list(layers) if self._only_checks else chosen
        if not checked:
            return
        if compiled.parts:
            self._forward = CheckpointedCompiled(checked, compiled.parts, only_checks=self._only_checks)
        else:
            self._forward = CheckpointedForward(user_class(layers[0]), checked, only_checks=self._only_checks)
        self._forward.install()


hook = ActivationCheckpointingHook


def _trains(module: nn.Module) -> bool:
    from torch import is_grad_enabled

    return module.training and is_grad_enabled() and any(each.requires_grad for each in module.parameters())


def _obstacle(root: nn.Module, layers: Sequence[nn.Module]) -> str:
    """Return the reason why the hook cannot checkpoint the layers of a model, in words; empty if they can be."""
    from torch.jit import ScriptModule

    from torchx_cubicml.recorder.model.precision import can_see_backward

    parts, inner = list(root.modules()), [part for layer in layers for part in layer.modules()]
    obstacles = {
        "this torch does not tell whether a backward pass is running": not can_see_backward(),
        "the layers are compiled by TorchScript": any(isinstance(layer, ScriptModule) for layer in layers),
        _OWN: any(map(_checkpoints_itself, parts)),
        "another library has replaced the forward of a layer": any("forward" in vars(layer) for layer in layers),
        "the layers keep running statistics, which a second forward would change": any(map(_keeps_statistics, inner)),
    }
    return next((obstacle for obstacle, is_there in obstacles.items() if is_there), "")


def _checkpoints_itself(part: nn.Module) -> bool:
    """Return whether a module is torch's wrapper, or has the switch of the models of transformers turned on."""
    from torchx_cubicml.recorder.model.layers import user_class

    return user_class(part).__name__ == "CheckpointWrapper" or vars(part).get("gradient_checkpointing") is True


def _keeps_statistics(part: nn.Module) -> bool:
    return getattr(part, "running_mean", None) is not None
