"""Launch commands: parse a user's command, read the config in it, and write another config back."""

from __future__ import annotations

from torchx_cubicml.launch.bindings.config_file import patches_of
from torchx_cubicml.launch.bindings.spelling import same_value
from torchx_cubicml.launch.component import ComponentLaunch, MaterializedComponent, materialize
from torchx_cubicml.launch.config_io import change_for_profiling, read_config, with_rule_facts, write_config
from torchx_cubicml.launch.launch import Launch, workload_of
from torchx_cubicml.launch.migration import migrated_trials
from torchx_cubicml.launch.objective import with_measured_objective
from torchx_cubicml.launch.torchrun_command import TorchrunLaunch

__all__ = [
    "ComponentLaunch",
    "Launch",
    "MaterializedComponent",
    "TorchrunLaunch",
    "change_for_profiling",
    "materialize",
    "migrated_trials",
    "patches_of",
    "read_config",
    "same_value",
    "with_measured_objective",
    "with_rule_facts",
    "workload_of",
    "write_config",
]
