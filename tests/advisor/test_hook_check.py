"""Hooks before a launch: what is certain by the source, what a first launch tells, and what earlier ones told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor.hook_check import HookCheck
from torchx_cubicml.launch import Launch
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Binding, Parameter, SearchSpace

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Config, Value

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP")
BINDINGS = {"sharding_strategy": "fsdp", "tp_degree": "mesh.tp", "cp_degree": "mesh.cp"}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4)),
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=3, binding=Binding(kind="hook", name="fsdp")),
        *(
            Parameter(name=name, choices=(1, 2), binding=Binding(kind="hook", name=BINDINGS[name]))
            for name in ("tp_degree", "cp_degree")
        ),
    )
)
OWN: Config = {"micro_batch_size": 1, "sharding_strategy": ("FULL_SHARD",) * 3, "tp_degree": 1, "cp_degree": 1}
NO_FSDP = "the program calls neither FullyShardedDataParallel nor fully_shard (read: {script})"
NO_MESH = "the program calls neither init_device_mesh nor DeviceMesh (read: {script})"


def recorded(*names: str, **observed: Value) -> Trial:
    config = {name: OWN[name] for name in ("micro_batch_size", *names)}
    return replace(Trial.completed(workload={}, config=config, tokens_per_second=9.0), observed=observed)


def checked(folder: Path, text: str, *trials: Trial) -> HookCheck:
    (folder / "train.py").write_text(text)
    own = [replace(trial, config={**OWN, **trial.config}) for trial in trials]  # as they are in the terms of the space
    launch = Launch(program=str(folder / "train.py"), scheduler="local_cwd")
    return HookCheck.of(launch, SPACE, OWN, recorded=trials, own=own)


def test_what_the_source_lacks_cannot_be_set(tmp_path: Path) -> None:
    check = checked(tmp_path, "import torch\nfrom torch.distributed.fsdp import fully_shard\n")
    reason = NO_MESH.format(script=tmp_path / "train.py")
    assert check.unserved == {"tp_degree": reason, "cp_degree": reason}
    assert check.open == {"sharding_strategy": "fsdp"}
    assert check.texts()[0] == f"tp_degree kept as typed: its hook cannot set it: {reason}"
    assert check.open_text() == "the first launch tells whether these hooks serve the program: fsdp (sharding_strategy)"
    sentence = check.refusal("space.toml")
    assert sentence.startswith(f"a hook cannot set tp_degree and cp_degree: {reason}. Nothing was launched: ")
    assert "remove tp_degree and cp_degree from space.toml" in sentence


def test_where_a_library_may_make_the_call_the_first_launch_tells(tmp_path: Path) -> None:
    check = checked(tmp_path, "import lightning\n# a mesh\n")
    assert (check.unserved, check.refusal("space.toml")) == ({}, "")
    listed = "fsdp (sharding_strategy), mesh (tp_degree and cp_degree)"
    reason = NO_FSDP.format(script=tmp_path / "train.py")
    assert check.open_text().endswith(f": {listed}; {reason}, but imports lightning, which may")


def test_a_name_that_speaks_against_a_hook_is_a_doubt(tmp_path: Path) -> None:
    layers = Parameter(
        name="recompute", choices=("none", "full"), binding=Binding(kind="hook", name="activation_checkpointing")
    )
    (tmp_path / "train.py").write_text("model = torch.compile(model)\n")
    launch = Launch(program=str(tmp_path / "train.py"), scheduler="local_cwd")
    check = HookCheck.of(launch, SearchSpace(parameters=(layers,)), {"recompute": "none"}, recorded=[], own=[])
    assert check.open_text().endswith(
        ": activation_checkpointing (recompute); the program names torch.compile: for activation_checkpointing, "
        "the model may be compiled as a whole"
    )


def test_a_launch_that_checked_a_hook_decides(tmp_path: Path) -> None:
    check = checked(tmp_path, "import torch\n", recorded("sharding_strategy", "tp_degree", "cp_degree"))
    assert (check.open, check.unserved, check.open_text()) == ({}, {}, "")


def test_a_launch_that_knew_nothing_of_the_hook_decides_nothing(tmp_path: Path) -> None:
    assert set(checked(tmp_path, "import torch\n", recorded()).unserved) == set(BINDINGS)
    unmeasured = replace(recorded(*BINDINGS), measurement=None)
    assert set(checked(tmp_path, "import torch\n", unmeasured).unserved) == set(BINDINGS)


@pytest.mark.parametrize(
    ("observed", "doubt"),
    [
        ({"n_layers": 4}, "sharding_strategy has 3 values, but the latest launch, {trial}, had n_layers = 4"),
        ({"sharding_strategy": "DDP"}, "the latest launch, {trial}, trained with sharding_strategy = DDP"),
        ({"n_layers": 3, "sharding_strategy": "FULL_SHARD"}, ""),
    ],
)
def test_an_earlier_model_raises_a_doubt_alone(tmp_path: Path, observed: dict[str, Value], doubt: str) -> None:
    trial = recorded(**observed)
    check = checked(tmp_path, "fully_shard(mesh)\n", trial)
    assert check.unserved == {}
    assert check.doubts == ((doubt.format(trial=trial.trial_id),) if doubt else ())


def test_a_space_without_hooks_reads_no_source(tmp_path: Path) -> None:
    space = replace(SPACE, parameters=SPACE.parameters[:1])
    check = HookCheck.of(Launch(program=str(tmp_path / "none.py")), space, OWN, recorded=[], own=[])
    assert (check.open, check.doubts, check.unserved, check.open_text()) == ({}, (), {}, "")
