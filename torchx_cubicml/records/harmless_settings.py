"""Settings of a command that change neither the work of a step nor its speed: names, folders, seeds, logging and so on.

A table only: what is not in it is judged by the history of launches.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from torchx_cubicml.facts.named_places import RUN_WORDS, NamedPlace, is_path, place_of, word_set, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHOLE = frozenset(
    {
        *("comment", "note", "notes", "verbose", "quiet", "port", "host", "report_to", "resume", "v", "q"),
        "local_rank",  # set by a launcher, such as DeepSpeed's, in each process
        *("steps", "step", "max_steps", "num_steps", "n_steps", "total_steps", "train_steps", "training_steps"),
        *("max_train_steps", "num_train_steps", "num_training_steps", "max_training_steps", "total_iters"),
        *("iters", "iterations", "max_iters", "num_iters", "n_iters", "train_iters", "num_iterations"),
        *("max_iterations", "total_iterations", "epoch", "epochs", "max_epochs", "min_epochs", "num_epochs"),
        *("n_epochs", "num_updates", "max_updates", "num_train_epochs", "nb_epochs", "train_epochs"),
        *("total_epochs", "train_samples"),
        *("lr", "learning_rate", "min_lr", "max_lr", "base_lr", "peak_lr", "init_lr", "end_lr", "final_lr"),
        *("blr", "lrf", "lr0", "weight_decay", "wd", "beta", "beta1", "beta2", "betas", "eps", "epsilon"),
        *("adam_beta1", "adam_beta2", "adam_eps", "adam_epsilon", "gamma", "decay"),
        *("exit_interval", "exit_duration_in_mins"),
        *("grad_clip", "clip_grad", "clip_grad_norm", "max_grad_norm", "gradient_clip_val", "clip", "clip_norm"),
    }
)
"""Names that are harmless as a whole: step counts, and constants of the optimizer that choose no other kernel.

Dropout, label smoothing and momentum do: each has a value that leaves out a kernel or a buffer.
"""

_LABELS = word_set(
    "name project group entity tag tags description title user id uuid dir folder save results o dirname"
)
"""Names that are harmless alone or in a section of ``_RUN_SECTIONS``: ``--name``, ``run.name=``, no ``model.name=``."""

_RUN_SECTIONS = RUN_WORDS | {"meta", "metadata"}

_PARTS = word_set(
    "log logs logger loggers logging loglevel wandb tensorboard mlflow neptune comet aim trackio lr print progress"
)
"""Parts of a name, or of its section, any of which makes it harmless if no part is in ``_SIZES``."""

_ALWAYS = frozenset({"seed", "seeds", "warmup"})
"""Parts of a name, any of which makes it harmless whatever the others are."""

_EVENTS = word_set("log logging save saving eval evaluation print ckpt checkpoint checkpoints")
_CADENCES = frozenset({"every", "interval", "freq", "frequency", "steps", "epochs", "iters", "limit", "strategy"})
_OF_CADENCE = _EVENTS | _CADENCES | {"n", "num", "per", "step", "epoch", "iter", "total", "model", "state", "metrics"}
"""Names of these parts alone say how often something is logged, saved or evaluated: ``save_every_n_steps``."""

_PLACES = frozenset({NamedPlace.OUTPUT, NamedPlace.LABEL, NamedPlace.CACHE})
"""Verdicts on a name that make it harmless: where a program writes, and under which name."""

_SIZES = word_set(
    "model layer layers hidden dim size batch seq sequence len length head heads width depth vocab precision "
    "dtype activation activations gradient grad recompute recomputation checkpointing offload compile attention "
    "attn fsdp shard sharding parallel worker workers accumulation accum eval validation val ratio data dataset "
    "image img res resolution patch expert experts pretrained"
)
"""Parts of a name that tell of the work of a step."""

_VARIABLES = re.compile(
    r"\$(?:"
    r"(?:WANDB|MLFLOW|COMET|NEPTUNE|TENSORBOARD|HF_HUB|HYDRA|TORCHX|TORCHELASTIC|TORCH_SHOW|TORCH_FR|SLURM|AWS|GOOGLE"
    r"|AZURE|CUBICML|NCCL_DEBUG|PYTHON|LOGGING)\w*"
    r"|HF_HOME|HF_DATASETS_CACHE|TORCH_LOGS\w*|TORCH_CPP_LOG\w*|TORCH_NCCL_TRACE\w*|LOGS?_\w+|LOGGER|\w*LOG_?LEVEL"
    r"|\w+_(?:LOG|SEED|PORT)|SEED)"
)


@lru_cache(maxsize=4096)
def is_harmless(name: str, value: str = "") -> bool:
    """Return whether a setting of this name is known to change neither the work of a step nor its speed.

    Args:
        name: as ``argument_words`` gives it, or ``$NAME`` of an environment variable, or ``--flag:key`` of a file.
        value: as typed or digested. A path tells of an output where the name alone does not: ``--ckpt run.pt``.

    >>> [name for name in ("--seed", "--seq_len", "--run_name", "training.steps=", "--save_every", "--model_dir")
    ...  if is_harmless(name)]
    ['--seed', '--run_name', 'training.steps=', '--save_every']
    """
    if name.startswith("$"):
        return _VARIABLES.fullmatch(name) is not None or place_of(name[1:]) in {NamedPlace.OUTPUT, NamedPlace.LABEL}
    plain = name.rpartition(":")[2].strip("-+=")
    section, _, last = plain.rpartition(".")
    parts, sections = words_of(last), words_of(section.rpartition(".")[2])
    place = place_of(plain, value if is_path(value) else None)
    if not parts or name.startswith("argument "):
        return False
    return (
        not _ALWAYS.isdisjoint(parts)
        or _is_cadence((*sections, *parts))
        or (_SIZES.isdisjoint(sections) and (place in _PLACES or _is_whole(parts, last.lower(), sections)))
        or (_SIZES.isdisjoint((*sections, *parts)) and not _PARTS.isdisjoint((*sections[-1:], *parts)))
    )


def _is_cadence(parts: Sequence[str]) -> bool:
    is_closed = _OF_CADENCE.issuperset(parts)
    return is_closed and not _EVENTS.isdisjoint(parts) and not _CADENCES.isdisjoint(parts)


def _is_whole(parts: Sequence[str], text: str, sections: Sequence[str]) -> bool:
    """Return whether a name is harmless as a whole, or names or places a run."""
    is_of_run = not sections or sections[-1] in _RUN_SECTIONS
    return not (_WHOLE | _LABELS if is_of_run else _WHOLE).isdisjoint({"_".join(parts), text})
