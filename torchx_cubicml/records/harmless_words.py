"""Words of a command that change neither the work of a step nor its speed: names, folders, seeds, logging and the like.

A table only: what is not in it is judged by the history of launches.
"""

from __future__ import annotations

import re

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_WHOLE = frozenset(
    {
        *("name", "run", "runs", "exp", "experiment", "project", "group", "entity", "tag", "tags", "note", "notes"),
        *("comment", "description", "title", "user", "id", "uuid", "version", "jobname", "verbose", "quiet", "debug"),
        *("dir", "folder", "out", "output", "outdir", "save", "resume", "port", "host", "report_to", "v", "q", "o"),
        *("steps", "step", "max_steps", "num_steps", "n_steps", "total_steps", "train_steps", "training_steps"),
        *("max_train_steps", "num_train_steps", "num_training_steps", "max_training_steps", "total_iters"),
        *("iters", "iterations", "max_iters", "num_iters", "n_iters", "train_iters", "num_iterations"),
        *("max_iterations", "total_iterations", "epoch", "epochs", "max_epochs", "min_epochs", "num_epochs"),
        *("n_epochs", "num_train_epochs", "nb_epochs", "train_epochs", "total_epochs", "train_samples"),
        *("lr", "learning_rate", "min_lr", "max_lr", "base_lr", "peak_lr", "init_lr", "end_lr", "final_lr"),
        *("blr", "lrf", "lr0", "weight_decay", "wd", "momentum", "beta", "beta1", "beta2", "betas", "eps", "epsilon"),
        *("grad_clip", "clip_grad", "max_grad_norm", "gradient_clip_val", "clip", "clip_norm"),
        *(
            "adam_beta1",
            "adam_beta2",
            "adam_eps",
            "adam_epsilon",
            "gamma",
            "decay",
            "label_smoothing",
            "temperature",
            "dropout",
            "drop_path",
            "clip_grad_norm",
        ),
    }
)
"""Names that are harmless as a whole, with the standard forms of step counts and of the optimizer's constants."""

_PARTS = frozenset(
    {
        *("log", "logs", "logger", "logging", "logdir", "loglevel", "wandb", "tensorboard", "mlflow"),
        *("neptune", "comet", "aim", "trackio", "ckpt", "ckpts", "checkpoints", "schedule", "scheduler"),
        *("lr", "dirname", "directory", "outdir", "rundir", "workdir", "print", "progress"),
    }
)
"""Parts of a name, any of which makes it harmless if no other part is in ``_SIZES``."""

_ALWAYS = frozenset({"seed", "seeds", "warmup"})
"""Parts of a name, any of which makes it harmless whatever the others are."""

_ENDS = frozenset({"dir", "folder", "directory", "tag", "tags", "every", "interval", "freq", "frequency"})
"""Last parts of a name that make it harmless under the same condition."""

_STARTS = frozenset({"run", "exp", "experiment", "output", "save", "checkpoint", "wandb", "log"})
"""First parts of a name of two that make it harmless if the second is ``name``, ``id``, ``path``, ``root``..."""

_ADDRESSES = frozenset({"name", "id", "path", "root", "prefix", "suffix", "uri", "url", "file", "folder", "dir"})

_SIZES = frozenset(
    {
        *("model", "layer", "layers", "hidden", "dim", "size", "batch", "seq", "sequence", "len", "length", "head"),
        *("heads", "width", "depth", "vocab", "precision", "dtype", "activation", "activations", "gradient", "grad"),
        *("recompute", "recomputation", "checkpointing", "offload", "compile", "attention", "attn", "fsdp", "shard"),
        *("sharding", "parallel", "worker", "workers", "accumulation", "accum", "eval", "validation", "val", "ratio"),
        *("data", "dataset", "image", "img", "res", "resolution", "patch", "expert", "experts", "pretrained"),
    }
)
"""Parts of a name that tell of the work of a step."""

_VARIABLES = re.compile(
    r"\$(?:WANDB|MLFLOW|COMET|NEPTUNE|TENSORBOARD|HF_HOME|HF_HUB|HF_DATASETS_CACHE|HYDRA|TORCHX|TORCHELASTIC"
    r"|TORCH_LOGS|TORCH_SHOW|TORCH_DISTRIBUTED_DEBUG|TORCH_CPP_LOG|TORCH_FR|TORCH_NCCL_TRACE|NCCL_DEBUG|PYTHON|LOG"
    r"|SLURM|AWS|GOOGLE|AZURE|CUBICML).*|\$.*(?:LOG_?LEVEL|_LOG|_SEED|_DIR|_PORT|_NAME)"
)


def is_harmless(name: str) -> bool:
    """Return whether a word of this name is known to change neither the work of a step nor its speed.

    Args:
        name: as ``argument_words`` gives it, or ``$NAME`` of an environment variable, or ``--flag:key`` of a file.

    >>> [name for name in ("--seed", "--seq_len", "--run_name", "training.steps=", "--save_every", "--model_dir")
    ...  if is_harmless(name)]
    ['--seed', '--run_name', 'training.steps=', '--save_every']
    """
    if name.startswith("$"):
        return _VARIABLES.fullmatch(name) is not None
    section, _, last = name.rpartition(":")[2].strip("-+=").rpartition(".")
    parts = [part.lower() for part in _PART.findall(last)]
    if not parts or name.startswith("argument "):
        return False
    if {"_".join(parts), last.lower()} & _WHOLE or not _ALWAYS.isdisjoint(parts):
        return True
    if not _SIZES.isdisjoint(parts):
        return False
    if len(parts) == 2 and parts[0] in _STARTS and parts[1] in _ADDRESSES:
        return True
    sections = [part.lower() for part in _PART.findall(section)]
    return bool(_PARTS.intersection(parts)) or parts[-1] in _ENDS or bool(sections and sections[-1] in _PARTS)
