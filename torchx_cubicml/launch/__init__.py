"""Launch commands: parse a user's command, read the config in it, and write another config back."""

from __future__ import annotations

from torchx_cubicml.launch.bindings.config_file import patches_of
from torchx_cubicml.launch.component import ComponentLaunch, MaterializedComponent, materialize
from torchx_cubicml.launch.config_io import (
    change_for_profiling,
    command_history,
    read_config,
    with_rule_facts,
    write_config,
)
from torchx_cubicml.launch.launch import Launch, workload_of
from torchx_cubicml.launch.torchrun_command import TorchrunLaunch

__all__ = [
    "ComponentLaunch",
    "Launch",
    "MaterializedComponent",
    "TorchrunLaunch",
    "change_for_profiling",
    "command_history",
    "materialize",
    "patches_of",
    "read_config",
    "with_rule_facts",
    "workload_of",
    "write_config",
]
