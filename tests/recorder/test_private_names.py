"""The names of torch's own that are read although they are private: each is there, and none must be.

A torch in which one has moved fails here. What becomes of a recording then is in ``test_recorder_failing_hooks.py``.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn

OF_MODULES = [
    "torch._C._is_tracing",
    "torch._C._current_graph_task_id",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch.nn.modules.module._has_any_global_hook",
    "torch.nn.modules.module._global_forward_pre_hooks",
    "torch.optim.optimizer._default_to_fused_or_foreach",
    "torch.jit._recursive.get_hook_stubs",
    "torch._dynamo.callback.callback_handler",
    "torch._dynamo.utils.counters",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.nn.utils.clip_grads_with_norm_",
    "torch.distributed.distributed_c10d._update_default_pg",
]
OF_CLASSES = [
    ("torch.nn", "Module", "_compiled_call_impl"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "clip_grad_norm_"),
    ("torch.distributed.fsdp", "FSDPModule", "_get_fsdp_state"),
    ("torch.distributed.device_mesh", "DeviceMesh", "_get_root_mesh"),
    ("torch.distributed.device_mesh", "DeviceMesh", "_unflatten"),
    ("torch.distributed.tensor.parallel", "ColwiseParallel", "_partition_linear_fn"),
    ("torch.distributed.tensor.parallel", "ColwiseParallel", "_partition_embedding_fn"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase", "__init__"),
    ("torch.distributed.pipelining.schedules", "_PipelineSchedule", "__init__"),
    ("torch.utils.data", "DataLoader", "__init__"),
]


@pytest.mark.parametrize("path", OF_MODULES)
def test_a_name_of_a_module_is_there(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("module", "kind", "name"), OF_CLASSES, ids=lambda value: value)
def test_a_name_of_a_class_is_there(module: str, kind: str, name: str) -> None:
    assert hasattr(getattr(importlib.import_module(module), kind), name)


def test_names_of_objects_are_there() -> None:
    module = nn.Linear(2, 1)
    assert {"_modules", "_parameters", "_forward_hooks", "_forward_pre_hooks"} <= set(vars(module))
    assert isinstance(module.weight._version, int)
    wrapped = torch.compile(module, backend="eager")
    assert wrapped._modules["_orig_mod"] is module
    assert callable(wrapped.get_compiler_config)
    assert callable(vars(wrapped)["forward"])
