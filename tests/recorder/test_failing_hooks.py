"""Whatever fails in a hook: the training ends as without us, with one warning, and no hook is left behind."""

from __future__ import annotations

import ast
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

import torchx_cubicml.recorder
from torchx_cubicml.recorder import session as recording
from torchx_cubicml.recorder.attempt.early_failure import NodeReport, early_failure
from torchx_cubicml.recorder.attempt.notes import AttemptNotes, read_attempt
from torchx_cubicml.recorder.process.assignment import Assignment
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.recorder.session import Session
from torchx_cubicml.records.contract import Contract
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.settings import ATTEMPT_VARIABLE, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.recorder.steps.training import Training

STEPS = 20


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train() -> tuple[Model, float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss = 0.0
    for step in range(STEPS):
        tokens = torch.randint(11, (3, 5))
        output = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        output.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = output.item()
        if step == STEPS - 5:
            model.eval()
            with torch.no_grad():
                model(tokens)
            model.train()
            torch.save({}, os.devnull)
    return model, loss


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Session]:
    """Return a session of this process that records nothing: only its hooks are there."""
    for module in (nn.utils, nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    for module in (torch, torch.serialization):
        monkeypatch.setattr(module, "save", torch.save)
    monkeypatch.setattr(nn.Module, "train", nn.Module.train)
    monkeypatch.setattr(torch.jit._recursive, "get_hook_stubs", torch.jit._recursive.get_hook_stubs)
    contract = Contract(store=str(tmp_path), workload={"program": "train.py"})
    made = Session(Assignment(job=read_job_environment({}), contract=contract, declared=True, trial_id="t-1"))
    before = dict(optimizers._global_optimizer_post_hooks)
    yield made
    made._is_disabled = True
    optimizers._global_optimizer_post_hooks.clear()
    optimizers._global_optimizer_post_hooks.update(before)


def hooks_of(model: nn.Module) -> list[object]:
    return [
        hook
        for module in model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    ]


def test_a_sound_training_gives_no_warning(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    _, plain = train()
    session.guarded(session._on_torch)()
    model, loss = train()
    training: Training = session._training
    training.conclude()
    assert loss == plain
    assert training.steps == STEPS
    assert training.facts()["max_grad_norm"] == 1.0
    assert capsys.readouterr().err == ""
    assert hooks_of(model) == []


@pytest.mark.parametrize(
    "broken",
    [
        "ranks.peers:Peers",
        "steps.torch_hooks:hide_hooks_from_torchscript",
        "steps.deferred_hooks:make_step_hook",
        "steps.clipping:Clipping.install",
        "steps.clipping:Clipping.watch_fsdp",
        "steps.training:Training._follow",
        "steps.training:modules_around",
        "steps.forwards:contains_all",
        "steps.forwards:Forwards._before_forward",
        "steps.forwards:Forwards._choose",
        "steps.forwards:find_batch",
        "steps.forwards:loader_batch_size",
        "steps.forwards:mean_batch_size",
        "steps.forwards:output_node",
        "steps.forwards:Forwards._begin_backward",
        "steps.forwards:Forwards.take",
        "steps.forwards:Forwards.settle",
        "steps.sampling:StepSampling.saw",
        "steps.sampling:StepSampling.plan",
        "steps.forwards:Forwards.work_of",
        "steps.forwards:Forwards.look_again",
        "steps.forwards:DeferredForwardHook",
        "model.precision:autocast_type",
        "model.precision:in_backward",
        "model.inspection:PrecisionProbe",
        "model.inspection:repeated_blocks",
        "model.inspection:attention_kernel",
        "model.inspection:autocast_type",
        "model.inspection:observe",
        "model.inspection:read_pipeline",
        "steps.step_times:make_clock",
        "model.facts:read_sharding",
        "model.facts:read_widths",
        "model.facts:read_optimizer",
        "model.facts:hardware_facts",
        "model.facts:compile_facts",
        "model.facts:count_float8_modules",
        "steps.deferred_hooks:StepBuffer.open",
        "steps.deferred_hooks:StepBuffer.end_step",
        "steps.deferred_hooks:StepBuffer.take",
        "steps.step_clock:HostClock.steps",
        "steps.step_clock:paused_s",
        "steps.evaluation_passes:on_every_mode_switch",
        "steps.evaluation_passes:EvaluationWatch.switched",
        "steps.pauses:Pauses.evaluate",
        "steps.pauses:Pauses.train",
        "steps.pauses:Pause",
        "steps.checkpoint_calls:watch_checkpoints",
        "steps.steady_state:EvaluationKinds.of",
        "model.batch:BatchReader.sizes",
        "model.precision:PrecisionProbe._note_autocast",
        "model.facts:_selective_recompute",
        "model.facts:overlaps_tensor_parallelism",
        "steps.training:count_buffered_steps",
    ],
)
def test_a_failing_hook_gives_one_warning_only(
    broken: str, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, plain = train()
    name, _, path = broken.partition(":")
    *within, last = path.split(".")
    place = importlib.import_module(f"torchx_cubicml.recorder.{name}")
    for part in within:
        place = getattr(place, part)

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(place, last, fail)
    session.guarded(session._on_torch)()
    model, loss = train()
    session.guarded(session._conclude)()
    assert loss == plain
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1, warnings
    assert "recording stopped, the training continues: RuntimeError: injected" in warnings[0]
    assert hooks_of(model) == []


def rewritten(folder: Path) -> Assignment:
    """Return the assignment of a rewritten launch, whose ranks leave notes in ``folder``."""
    contract = Contract(store=str(folder), workload={"program": "train.py"}, origin=Origin.REWRITE)
    job = read_job_environment({ATTEMPT_VARIABLE: str(folder)})
    return Assignment(job=job, contract=contract, declared=True, trial_id="t-1")


def is_started_again(folder: Path) -> bool:
    """Return whether the launch would be started again as typed if it ran out of memory now."""
    AttemptNotes(str(folder), 0).ended(State.OUT_OF_MEMORY)
    report = NodeReport.of(read_attempt(str(folder)), {0: 1}, seconds=20.0, host_killed_processes=False)
    return bool(early_failure([report]))


def test_no_second_attempt_follows_once_the_recorder_has_given_up(tmp_path: Path) -> None:
    """It would no longer see a checkpoint."""
    made = Session(rewritten(tmp_path))
    made.guarded(lambda: None)()
    assert is_started_again(tmp_path)
    made.guarded(lambda: 1 / 0)()
    assert read_attempt(str(tmp_path)).saved
    assert not is_started_again(tmp_path)


def test_no_second_attempt_follows_where_a_rank_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("injected")

    monkeypatch.setattr(recording, "read_assignment", lambda program: rewritten(tmp_path))
    monkeypatch.setattr(recording, "Reporter", fail)
    with pytest.raises(OSError, match="injected"):
        recording.open_session(Program(name="train.py"))
    assert not is_started_again(tmp_path)


def test_a_clipping_that_is_not_understood_is_left_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torchx_cubicml.recorder.steps.clipping.math", None)
    session.guarded(session._on_torch)()
    _, loss = train()
    assert loss > 0
    assert capsys.readouterr().err.count("warning") == 1


@pytest.mark.parametrize(
    "path",
    [
        "torch._C._is_tracing",
        "torch._C._current_graph_task_id",
        "torch.jit._recursive.get_hook_stubs",
        "torch._dynamo.callback.callback_handler",
        "torch.nn.utils.clip_grads_with_norm_",
    ],
)
def test_a_torch_without_a_private_name_is_recorded_with_less(
    path: str, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, plain = train()
    module, _, name = path.rpartition(".")
    monkeypatch.delattr(importlib.import_module(module), name)
    session.guarded(session._on_torch)()
    _, loss = train()
    session.guarded(session._conclude)()
    assert loss == plain
    assert capsys.readouterr().err == ""
    assert session._training.steps == STEPS
    facts = session._training.facts()
    assert (facts["n_layers"], facts["optimizer"]) == (2, "AdamW")
    assert ("activation_checkpointing" in facts) == (name != "_current_graph_task_id")


COLLECTIVES = {
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "allgather", "allreduce", "barrier", "broadcast", "broadcast_object_list", "gather_object", "irecv", "isend",
    "monitored_barrier", "new_group", "new_subgroups", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "scatter_object_list", "send_object_list", "split_group", "synchronize",
}  # fmt: skip


def test_no_collective_is_ever_called() -> None:
    """A collective of ours would wait for ranks that have none: what reads a rank's socket is no process group's."""
    found = set()
    for path in Path(torchx_cubicml.recorder.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COLLECTIVES:
                found.add((path.name, ast.unparse(node.func)))
    # The child's own socket; and the device, as a profiling launch is left.
    assert found == {
        ("sender.py", "self._socket.recv"),
        ("writer.py", "connection.recv"),
        ("session.py", "torch.cuda.synchronize"),
    }
