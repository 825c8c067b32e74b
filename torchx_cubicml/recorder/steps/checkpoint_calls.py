"""Checkpoints, observed by wrapping the functions of torch and of trainers that save and load them.

To support a trainer, add its functions to ``_FUNCTIONS``. A training *goes on* if it loads state of an optimizer, of a
schedule or of a loader before its first step, after it has read a file. Weights alone are a start of their own.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from functools import cached_property, partial, wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps.torch_hooks import once_imported
from torchx_cubicml.records.resumption import LOADED_FROM, SAVED_IN, SAVED_STEP, STARTS_ANEW, UNSEEN, folder_id
from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml.launch.going_on import CommandPaths
    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.values import Value

# Module -> its functions, or methods of its classes; the names of those that load hold "load".
_FUNCTIONS = {
    "torch.serialization": ("save", "load"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
    "torch.distributed.checkpoint.state_dict_loader": ("load", "load_state_dict"),
    "safetensors.torch": ("save_file", "save_model", "load_file", "load_model"),
    "transformers.trainer": ("Trainer._save_checkpoint", "Trainer.save_model"),
    "accelerate.accelerator": ("Accelerator.save_state", "Accelerator.save_model", "Accelerator.load_state"),
    "lightning.fabric.fabric": ("Fabric.save", "Fabric.load"),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    "deepspeed.runtime.engine": ("DeepSpeedEngine.save_checkpoint", "DeepSpeedEngine.load_checkpoint"),
    "megatron.training.checkpointing": ("save_checkpoint", "load_checkpoint"),
    "megatron.core.dist_checkpointing.serialization": ("save", "load"),
    "torchtitan.components.checkpoint": ("CheckpointManager.save",),
    # State that a training without a past does not load.
    "torch.optim.optimizer": ("Optimizer.load_state_dict",),
    "torch.optim.lr_scheduler": ("LRScheduler.load_state_dict",),
    "torchrec.optim.keyed": ("KeyedOptimizer.load_state_dict",),
    "torchdata.stateful_dataloader.stateful_dataloader": ("StatefulDataLoader.load_state_dict",),
}
_STEPS = frozenset({"step", "steps", "global_step", "iter", "iter_num", "iteration", "iterations"})
_OPTIMIZER = re.compile(r"optim|param_groups")
_PROGRESS = re.compile(r"(?i)(?:^|_)(?:epoch|step|iter)")
_MOST_FOLDERS = 16
_MOST_DEPTH = 3
_MOST_KEYS = 256


def saving_names() -> tuple[frozenset[str], frozenset[str]]:
    """Return the full names of the known saving functions, and the names of saving methods."""
    paths = [(module, path) for module, names in _FUNCTIONS.items() for path in names if not _is_loading(path)]
    functions = {f"{module}.{path}" for module, path in paths if "." not in path}
    exported = {f"{module.rpartition('.')[0]}.{path}" for module, path in paths if "." not in path}
    methods = {path.rpartition(".")[2] for _, path in paths if "." in path} - {"save"}  # too common a name
    return frozenset(functions | exported), frozenset(methods)


def _is_loading(path: str) -> bool:
    return "load" in path.rpartition(".")[2]


def writes_file(save: partial[object]) -> bool:
    """Return whether a saving call writes a file, as far as its arguments tell: ``torch.save`` may fill a buffer."""
    return getattr(save.func, "__module__", "") != "torch.serialization" or bool(_path(save))


def _is_of_training(save: partial[object]) -> bool:
    """Return whether a training may go on from what is saved, which may be weights or data alone."""
    if getattr(save.func, "__name__", "") == "save_model":
        return False
    if getattr(save.func, "__module__", "") not in {"torch.serialization", "safetensors.torch"}:
        return True
    content = next(iter((*save.args, *save.keywords.values())), None)
    is_told = isinstance(content, dict) and any(_PROGRESS.search(str(key)) for key in content)
    return is_told or any(_OPTIMIZER.search(key) for key, _ in _entries(content))


def _path(call: partial[object]) -> str:
    """Return the path that a call saves to or loads from; empty where its arguments name none."""
    for value in (*call.args, *call.keywords.values()):
        # An open file, or a reader or writer of torch's distributed checkpoints.
        is_open = any(hasattr(value, name) for name in ("read", "write", "read_data", "write_data"))
        place = next(filter(None, (getattr(value, name, None) for name in ("name", "path"))), "") if is_open else value
        if isinstance(place, str | os.PathLike) and os.fspath(place) not in {"", os.devnull}:
            path = os.fsdecode(place)
            return path if "://" in path else os.path.realpath(path)
    return ""


class Checkpoints:
    """Checkpoints that this process saves and loads; made before the program changes its arguments or its folder."""

    def __init__(self) -> None:
        self._command, self._start, self._environment = tuple(sys.argv), str(Path.cwd()), child_environment({})
        self._began = time.time()
        self._read: list[str] = []  # ids of the places of the files read
        self._has_read_bare_state = False  # of an optimizer that keeps none, such as plain SGD
        self._saved: tuple[str, ...] = ()  # ids of the places of the files saved
        self._step: int | None = 0
        self._step_in_file: int | None = None
        self._failure = ""  # type of an error while a checkpoint was loaded, which the program may catch
        self.facts: dict[str, Value] = {}
        self.is_loading = self.has_news = False

    def saving(self, save: partial[object], *, steps: int) -> None:
        """Note a call that saves, before it is made; there are news if its folder is a new one.

        Args:
            save: the call.
            steps: optimizer steps of this process so far.
        """
        path = _path(save)
        if writes_file(save):
            self.facts["saves_checkpoints"] = True
        if not path or not _is_of_training(save):
            return
        places = self.paths.places(path)
        is_unread = LOADED_FROM not in self.facts and set(places).isdisjoint(self._read)
        if steps and is_unread and _is_beside_older(path, self._began):
            self.facts[STARTS_ANEW] = True
        if self._step is not None:
            self.facts[SAVED_STEP] = self._step + steps
        self.has_news |= not set(places).issubset(self._saved)
        first, *earlier = self._saved or places
        earlier = [each for each in earlier if each not in places] + [each for each in places if each != first]
        self._saved = (first, *earlier[-_MOST_FOLDERS:])
        self.facts[SAVED_IN] = self._saved

    def load(self, load: Callable[[], object]) -> object:
        """Make a call that loads, before the first step, and return its result."""
        try:
            return load()
        except Exception as error:
            self._failure = type(error).__name__
            raise

    def was_loading(self, reason: str) -> bool:
        """Return whether a process that ends for a reason, before its first step, has failed to load a checkpoint."""
        is_cause = self._failure in reason or reason.startswith("exit status")
        return self.is_loading or (bool(self._failure) and is_cause)

    def loaded(self, load: partial[object], result: object) -> bool:
        """Note a call that has loaded, before the first step; return whether it shows that the training goes on."""
        name = getattr(load.func, "__qualname__", "")
        if name.endswith(".load_state_dict"):
            state = load.args[1] if len(load.args) > 1 else load.keywords.get("state_dict")
            is_past = self._has_read_bare_state or (bool(self._read) and _has_content(state))
            return is_past and self._goes_on(_step_in(state))
        path = _path(load)
        is_named = path in self.paths.words.values()
        places = (*self.paths.places(path), *(self.paths.around(path) if is_named else ())) if path else ()
        self._read += (each for each in places if each != UNSEEN)
        if name.endswith("load_checkpoint"):  # of a trainer: its first result is a step or a path, if it has found any
            first = result[0] if isinstance(result, tuple) and result else None
            is_past = bool(first) and not load.keywords.get("load_module_only")
            return is_past and self._goes_on(first if isinstance(first, int) else None)
        target = result if result is not None else load.keywords.get("state_dict", next(iter(load.args), None))
        entries = dict(_entries(target))
        if not any(map(_OPTIMIZER.search, entries)):
            return False
        self.is_loading = True
        states = (value for value in (target, *entries.values()) if isinstance(value, dict) and "param_groups" in value)
        self._has_read_bare_state |= not all(map(_has_content, states))
        steps = (value for key, value in entries.items() if key in _STEPS and type(value) is int)
        self._step_in_file = next(steps, None)
        return result is None and self._goes_on(None)  # in place

    def _goes_on(self, step: int | None) -> bool:
        self._step = step if step is not None else self._step_in_file
        self.is_loading = True
        self.facts[LOADED_FROM] = tuple(dict.fromkeys(self._read))[-_MOST_FOLDERS:] or (folder_id(""),)
        return True

    @cached_property
    def paths(self) -> CommandPaths:
        """Paths that the words of this process's command name."""
        from torchx_cubicml.launch.going_on import CommandPaths
        from torchx_cubicml.launch.launch import Launch

        program, *arguments = self._command
        launch = Launch(program=program, script_args=tuple(arguments), env=self._environment)
        return CommandPaths.of(launch, self._start, shell=self._environment)


def _is_beside_older(path: str, began: float) -> bool:
    """Return whether a checkpoint from before this process stands at a path, or beside it with a common ending."""
    file = Path(path, ".metadata") if Path(path).is_dir() else Path(path)
    with suppress(OSError):
        beside = islice(file.parent.iterdir(), _MOST_KEYS)
        alike = (each for each in beside if each == file or not set(file.suffixes).isdisjoint(each.suffixes))
        return any(each.stat().st_mtime < began for each in alike)
    return False


def _entries(value: object, depth: int = _MOST_DEPTH) -> Iterator[tuple[str, object]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in islice(items, _MOST_KEYS):
        yield str(key), each
        if depth > 1:
            yield from _entries(each, depth - 1)


def _has_content(state: object) -> bool:
    """Return whether a state is of a training with a past; that of a new optimizer has groups, and no state."""
    if not isinstance(state, dict):
        return False
    return bool(state.get("state") or state.get("last_epoch") or state.keys().isdisjoint({"state", "last_epoch"}))


def _step_in(state: object) -> int | None:
    """Return the steps that an optimizer's state has counted; ``None`` where it counts none."""
    of_parameters = state.get("state") if isinstance(state, dict) else None
    first = next(iter(of_parameters.values()), None) if isinstance(of_parameters, dict) else None
    step = first.get("step") if isinstance(first, dict) else None
    return int(step) if step is not None else None


def watch_checkpoints(
    saving: Callable[[partial[object]], object], loading: Callable[[partial[object]], object], guard: Guard
) -> None:
    """Route each call that saves or loads through ``saving`` or ``loading``.

    Both return the call's result and raise no errors of their own. ``guard`` makes code harmless that runs within the
    program's own imports.
    """
    for module in _FUNCTIONS:
        once_imported(module, guard(partial(_wrap_functions, module, saving, loading)))


def _wrap_functions(module: str, saving: Callable[..., object], loading: Callable[..., object]) -> None:
    for path in _FUNCTIONS[module]:
        *outer, name = path.split(".")
        holder: object = sys.modules.get(module)
        for each in outer:
            holder = getattr(holder, each, None)
        original = vars(holder).get(name) if holder is not None else None
        if not callable(original):
            continue
        wrapper = _wrapped(original, loading if _is_loading(path) else saving)
        setattr(holder, name, wrapper)
        other_module = sys.modules.get(module.rpartition(".")[0])  # may export the function
        if getattr(other_module, name, None) is original:
            setattr(other_module, name, wrapper)


def _wrapped(original: Callable[..., object], route: Callable[[partial[object]], object]) -> Callable[..., object]:
    @wraps(original)
    def call(*args: object, **kwargs: object) -> object:
        return route(partial(original, *args, **kwargs))

    return call
