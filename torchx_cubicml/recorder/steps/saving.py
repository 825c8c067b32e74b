"""Checkpoint saving, observed by wrapping torch's saving functions and those of the trainers.

To support a trainer, add its function to ``_SAVING_FUNCTIONS``.
"""

from __future__ import annotations

import os
import sys
from functools import partial, wraps
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps.torch_hooks import once_imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.recorder.steps.torch_hooks import Guard

# Module -> its saving functions, or methods of its classes.
_SAVING_FUNCTIONS = {
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
_ALSO_IN = {"torch.serialization": "torch"}  # second module that exports the same function


def saving_names() -> tuple[frozenset[str], frozenset[str]]:
    """Return the full names of the known saving functions, and the names of saving methods."""
    paths = [(module, path) for module, names in _SAVING_FUNCTIONS.items() for path in names]
    functions = {f"{module}.{path}" for module, path in paths if "." not in path}
    exported = {f"{module.rpartition('.')[0]}.{path}" for module, path in paths if "." not in path}
    methods = {path.rpartition(".")[2] for _, path in paths if "." in path} - {"save"}  # too common a name
    return frozenset(functions | exported), frozenset(methods)


def writes_file(save: Callable[[], object]) -> bool:
    """Return whether a saving call writes a file, as far as its arguments tell: ``torch.save`` may fill a buffer."""
    if not isinstance(save, partial) or getattr(save.func, "__module__", "") != "torch.serialization":
        return True
    target = save.keywords.get("f", save.args[1] if len(save.args) > 1 else None)
    name = getattr(target, "name", None) if hasattr(target, "write") else target
    return isinstance(name, str | os.PathLike) and os.fspath(name) != os.devnull


def watch_saving(saving: Callable[[Callable[[], object]], object], guard: Guard) -> None:
    """Route each saving call through ``saving``, which returns the call's result and raises no errors of its own.

    ``guard`` makes code harmless that runs within the program's own imports.
    """
    for module in _SAVING_FUNCTIONS:
        once_imported(module, guard(partial(_wrap_functions, module, saving)))


def _wrap_functions(module: str, saving: Callable[[Callable[[], object]], object]) -> None:
    for path in _SAVING_FUNCTIONS[module]:
        *outer, name = path.split(".")
        holder: object = sys.modules.get(module)
        for each in outer:
            holder = getattr(holder, each, None)
        original = vars(holder).get(name) if holder is not None else None
        if not callable(original):
            continue
        wrapper = _wrapped(original, saving)
        setattr(holder, name, wrapper)
        other_module = sys.modules.get(_ALSO_IN.get(module, ""))
        if getattr(other_module, name, None) is original:
            setattr(other_module, name, wrapper)


def _wrapped(
    original: Callable[..., object], saving: Callable[[Callable[[], object]], object]
) -> Callable[..., object]:
    @wraps(original)
    def save(*args: object, **kwargs: object) -> object:
        return saving(partial(original, *args, **kwargs))

    return save
