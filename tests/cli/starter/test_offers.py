"""Variables that a starter offers: each with its true default, and only where it matters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from torchx_cubicml.cli.starter import RecordedLaunches, offers, starter_space
from torchx_cubicml.cli.starter.offers import log_lines, variable_lines
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.launch.command_facts.stated_settings import Setting
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

HERE = Launch(program="t.py", scheduler="local_cwd", world_size=1, nnodes=1, nproc_per_node=1)
ALONE = RecordedLaunches()


@pytest.fixture(autouse=True)
def nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(offers, "local_device", lambda launch: {"device": Setting(value="cpu", source="x")})


def recorded(*digests: str, world_size: int = 1, **observed: Value) -> RecordedLaunches:
    trial = Trial(
        trial_id="a",
        workload={"program": "t.py"},
        config={},
        state=State.COMPLETED,
        observed={"world_size": world_size, **observed},
        arguments=(),
        digests=dict.fromkeys(digests, "0"),
    )
    return RecordedLaunches(trials=(trial,))


def default(launch: Launch, launches: RecordedLaunches = ALONE) -> tuple[str, Value]:
    """Return the variable of the needed parameter, and the value that it has for a command as it stands."""
    space = parse_space("\n".join(variable_lines(launch, launches, is_needed=True)), where="x")
    ((name, value),) = read_config(launch, space)[1].items()
    assert value in space.parameters[0].choices
    binding = space.parameters[0].binding
    assert binding is not None
    assert name in {"omp_num_threads", "cuda_allocator"}
    return binding.name, value


ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")


def test_the_threads_of_one_process_are_all_that_torch_takes() -> None:
    assert default(HERE) == ("OMP_NUM_THREADS", torch.get_num_threads())


def test_torchrun_gives_each_of_several_processes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    several = replace(HERE, world_size=4, nproc_per_node=4)
    assert default(several) == default(replace(several, scheduler="slurm")) == ("OMP_NUM_THREADS", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert default(several) == ("OMP_NUM_THREADS", 6)
    assert default(replace(several, scheduler="slurm")) == ("OMP_NUM_THREADS", 1)


def test_a_recorded_launch_tells_the_threads() -> None:
    slurm = replace(HERE, scheduler="slurm", launcher="srun")
    assert default(slurm) == ALLOCATOR  # nobody knows the threads there
    assert default(slurm, recorded(n_threads=12)) == ("OMP_NUM_THREADS", 12)
    assert default(slurm, recorded(n_threads=12, world_size=2)) == ALLOCATOR
    assert default(slurm, recorded("$OMP_NUM_THREADS", n_threads=12)) == ALLOCATOR


def test_on_a_device_the_allocator_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cuda = recorded(device="NVIDIA H100 80GB HBM3", compute_capability="9.0", n_threads=12)
    assert default(HERE, on_cuda) == ALLOCATOR
    lines = variable_lines(HERE, on_cuda, is_needed=False)
    assert lines
    assert all(line.startswith("# ") for line in lines)
    assert parse_space("\n".join(line.removeprefix("# ") for line in lines), where="x").parameters
    monkeypatch.setattr(offers, "local_device", lambda launch: {"device": Setting(value="h100", source="x")})
    assert default(HERE) == ALLOCATOR


@pytest.mark.parametrize("launches", [ALONE, recorded(device="cpu", n_threads=2)], ids=["none", "recorded"])
def test_elsewhere_nothing_is_offered_unless_it_is_needed(launches: RecordedLaunches) -> None:
    assert variable_lines(HERE, launches, is_needed=False) == []


class TestLogLines:
    UNMEASURED = replace(recorded().trials[0], measurement=None)
    MEASURED = Trial.completed(workload={}, config={}, samples_per_second=2.0)

    def test_a_program_without_a_throughput_is_told_how_to_declare_its_lines(self) -> None:
        text = "\n".join(line.removeprefix("# ") for line in log_lines([self.UNMEASURED]))
        head, _, section = text.partition("[log]")
        assert "No recorded launch of this program has a throughput" in head
        space = parse_space(f'[parameters.a]\nchoices = [1]\nenv = "A"\n[log]{section}\n', where="x")
        assert space.log is not None
        assert space.log.groups or "samples_per_second" in space.log.pattern

    @pytest.mark.parametrize(
        "trials",
        [
            [],
            [UNMEASURED, MEASURED],
            [replace(UNMEASURED, state=State.USER_ERROR)],
        ],
        ids=["no launch", "one was measured", "none ended well"],
    )
    def test_nothing_is_said_without_cause(self, trials: list[Trial]) -> None:
        assert log_lines(trials) == []

    @pytest.mark.parametrize("words", [(), ("--micro-batch-size=2", "--global-batch-size=8", "--num-layers=4")])
    def test_the_file_says_it(self, words: tuple[str, ...]) -> None:
        launch = replace(HERE, script_args=(*words, "--num-attention-heads=4") if words else ())
        text = starter_space(launch, "", RecordedLaunches(trials=(self.UNMEASURED,)))
        assert ('trainer = "megatron-lm"' in text) == bool(words)
        assert "# [log]\n" in text
        assert "# [log]\n" not in starter_space(launch, "", RecordedLaunches(trials=(self.UNMEASURED, self.MEASURED)))
