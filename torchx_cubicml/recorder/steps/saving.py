"""Sees checkpoints being saved: calls of torch's own functions for that, and of the trainers'.

To add a trainer, add the place of its function to ``_PLACES``.
"""

from __future__ import annotations

import sys
from functools import partial, wraps
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps.torch_hooks import once_imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.recorder.steps.torch_hooks import Guard

# Module -> what saves there: functions, or methods of classes.
_PLACES = {
    "torch.serialization": ("save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
    "transformers.trainer": ("Trainer._save_checkpoint", "Trainer.save_model"),
    "accelerate.accelerator": ("Accelerator.save_state", "Accelerator.save_model"),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    "deepspeed.runtime.engine": ("DeepSpeedEngine.save_checkpoint",),
    "megatron.training.checkpointing": ("save_checkpoint",),
    "torchtitan.components.checkpoint": ("CheckpointManager.save",),
}
_ALSO_IN = {"torch.serialization": "torch"}  # where the same function is looked up, too


def watch_saving(saving: Callable[[Callable[[], object]], object], guard: Guard) -> None:
    """Run each saving from now on through ``saving``, which returns what it returns and raises nothing of its own.

    ``guard`` is for what runs within the program's own imports.
    """
    for module in _PLACES:
        once_imported(module, guard(partial(_stand_in, module, saving)))


def _stand_in(module: str, saving: Callable[[Callable[[], object]], object]) -> None:
    for path in _PLACES[module]:
        *outer, name = path.split(".")
        holder: object = sys.modules.get(module)
        for each in outer:
            holder = getattr(holder, each, None)
        original = vars(holder).get(name) if holder is not None else None
        if not callable(original):
            continue
        wrapper = _noting(original, saving)
        setattr(holder, name, wrapper)
        elsewhere = sys.modules.get(_ALSO_IN.get(module, ""))
        if getattr(elsewhere, name, None) is original:
            setattr(elsewhere, name, wrapper)


def _noting(original: Callable[..., object], saving: Callable[[Callable[[], object]], object]) -> Callable[..., object]:
    @wraps(original)
    def save(*args: object, **kwargs: object) -> object:
        return saving(partial(original, *args, **kwargs))

    return save
