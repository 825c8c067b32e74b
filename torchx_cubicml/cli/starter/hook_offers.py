"""Offers of hooks in a starter space file, for a script that wraps its layers in FSDP without a flag for them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_files import dotted, imported_names, parsed_modules

if TYPE_CHECKING:
    from collections.abc import Collection

    from torchx_cubicml.launch import Launch

_FSDP1, _FSDP2 = "FullyShardedDataParallel", "fully_shard"
_CHECKPOINTS = ("torch.utils.checkpoint", "checkpoint_wrapper", "gradient_checkpointing_enable")
_CHOICES = {_FSDP1: ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"), _FSDP2: ("FULL_SHARD", "SHARD_GRAD_OP")}


def hook_lines(launch: Launch, *, taken: Collection[str], has_n_layers: bool) -> list[str]:
    """Return commented parameters with hooks; nothing for a script that does not use FSDP.

    Args:
        launch: the command.
        taken: standard names that flags of the command set.
        has_n_layers: whether a workload fact counts the layers.

    >>> from torchx_cubicml.launch import Launch
    >>> hook_lines(Launch(program="not/here.py"), taken=(), has_n_layers=True)
    []
    """
    names = {name for _, tree in parsed_modules(launch) for name in _used_names(tree)}
    generation = next((each for each in (_FSDP1, _FSDP2) if any(name.endswith(each) for name in names)), "")
    if not generation:
        return []
    checkpoints = any(mark in name for name in names for mark in _CHECKPOINTS)
    lines = []
    if "sharding_strategy" not in taken:
        lines += _block("sharding_strategy", "fsdp", _CHOICES[generation], has_n_layers=has_n_layers)
    if "activation_checkpointing" not in taken and not checkpoints:
        lines += _block(
            "activation_checkpointing", "activation_checkpointing", ("none", "full"), has_n_layers=has_n_layers
        )
    heading = "# No flag sets these. A hook can, inside the job; the first launch of a tune tells whether it serves:"
    return [heading, *lines] if lines else []


def _block(name: str, hook: str, choices: tuple[str, ...], *, has_n_layers: bool) -> list[str]:
    values = ", ".join(f'"{choice}"' for choice in choices)
    per_layer = ['# per_layer = "n_layers"'] if has_n_layers else []
    return [f"# [parameters.{name}]", f"# choices = [{values}]", *per_layer, f'# hook = "{hook}"']


def _used_names(tree: ast.Module) -> list[str]:
    """Return the full names that a module imports, calls or mentions."""
    imported = imported_names(tree)
    mentioned = [dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    return [*imported.values(), *filter(None, mentioned)]
