"""Environment variables of a command whose values are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_texts import recorded_variables

if TYPE_CHECKING:
    from pathlib import Path

SPEED = (
    *("XLA_FLAGS", "HSA_ENABLE_SDMA", "HIP_FORCE_DEV_KERNARG", "MIOPEN_FIND_MODE", "KMP_AFFINITY", "UCX_TLS"),
    *("FI_PROVIDER", "NEURON_CC_FLAGS", "NCCL_TOPO_FILE", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF"),
)
NO_WORK = (
    *("TORCH_HOME", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "EDITOR", "FIFO", "MY_NCCL_ALGO"),
)


def test_variables_of_every_backend_that_change_the_speed_are_compared() -> None:
    assert recorded_variables(None, SPEED) == tuple(sorted(SPEED))


def test_places_and_variables_of_the_launcher_are_not() -> None:
    assert recorded_variables(None, NO_WORK) == ()


def test_what_the_program_reads_is_compared_unless_it_is_a_secret(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("os.environ['DATA_DIR'], os.getenv('HF_TOKEN'), os.environ.get('RANK')")
    assert recorded_variables(program, ("DATA_DIR", "HF_TOKEN", "RANK", "OTHER")) == ("DATA_DIR",)
