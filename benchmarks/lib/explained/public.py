"""Commands of public trainers and scripts, in sizes that a CPU trains, for ``explain_commands.py``."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent.parent.parent / "tests" / "integrations" / "jobs"
_TOKENS, _WORDS = 100_000, 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCommand:
    """One command.

    Args:
        name: for people.
        library: whose interpreter runs it.
        folder: where it is typed.
        script: path in that folder, or of a file anywhere.
        words: of the script.
        processes: of the job, on one node.
        needs_devices: whether the script asks for accelerators, which the CPU has to stand for.
    """

    name: str
    library: str
    folder: Path
    script: str
    words: tuple[str, ...]
    processes: int = 2
    needs_devices: bool = False


def public_commands(scripts: Path, work: Path, libraries: Sequence[str]) -> list[PublicCommand]:
    """Return the commands whose scripts and libraries are there.

    Args:
        scripts: folder with copies of nanoGPT and of pytorch/examples (``pytorch_examples``).
        work: folder of the launches.
        libraries: names of interpreters that are given.
    """
    found = [*_of_scripts(scripts, work), *_of_libraries(work)]
    return [each for each in found if each.library in libraries and Path(each.folder, each.script).is_file()]


def _of_scripts(scripts: Path, work: Path) -> list[PublicCommand]:
    nano, examples = _copy(scripts / "nanoGPT", work), _copy(scripts / "pytorch_examples", work)
    if nano.is_dir():
        _write_tokens(nano / "data" / "tiny")
    same = [
        "--dataset=tiny",
        "--device=cpu",
        "--compile=False",
        "--dtype=float32",
        "--eval_interval=1000",
        "--eval_iters=1",
    ]
    sizes = ["--n_layer=2", "--n_head=4", "--n_embd=64", "--block_size=64", "--batch_size=4", "--max_iters=16"]
    others = ["--n_layer=3", "--n_head=6", "--n_embd=96", "--block_size=64", "--batch_size=8", "--max_iters=16"]
    on_cpu = {"library": "torch", "needs_devices": True}
    return [
        PublicCommand(
            name="nanoGPT",
            folder=nano,
            script="train.py",
            words=(*same, *sizes, "--gradient_accumulation_steps=2"),
            **on_cpu,
        ),
        PublicCommand(
            name="nanoGPT, config file",
            folder=nano,
            script="train.py",
            words=("config/train_shakespeare_char.py", *same, *others, "--gradient_accumulation_steps=2"),
            **on_cpu,
        ),
        PublicCommand(
            name="PyTorch's FSDP2 example", folder=examples / "FSDP2", script="example.py", words=(), **on_cpu
        ),
        PublicCommand(
            name="PyTorch's DDP tutorial",
            folder=examples / "ddp-tutorial-series",
            script="multigpu_torchrun.py",
            words=("2", "10"),
            **on_cpu,
        ),
    ]


def _of_libraries(work: Path) -> list[PublicCommand]:
    folder = work / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    titan = "--module llama3 --config llama3_debugmodel --training.steps 12 --training.local_batch_size 2 "
    titan += "--training.seq_len 64 --parallelism.spmd_backend partial_dtensor"
    hf = "--use_cpu True --max_steps 16 --report_to none --output_dir out --save_strategy no"
    clm = "--model_type gpt2 --config_overrides n_embd=96,n_layer=3,n_head=6,vocab_size=1000 --block_size 64"
    megatron, recommender = "train_megatron_core.py", "train_torchrec.py"
    words: Mapping[str, tuple[str, str, str]] = {
        "torchtitan": ("torchtitan", "train_torchtitan.py", titan),
        "torchtitan, tensor parallel": (
            "torchtitan",
            "train_torchtitan.py",
            f"{titan} --parallelism.tensor_parallel_degree 2",
        ),
        "Megatron-Core, recomputation": ("megatron", megatron, "--recompute-granularity full"),
        "Megatron-Core, experts": ("megatron", megatron, "--expert-model-parallel-size 2 --num-experts 4"),
        "Hugging Face Trainer": ("transformers", "train_hf.py", f"{hf} --per_device_train_batch_size 4 --n_layer 3"),
        "Hugging Face run_clm": (
            "transformers",
            str(HERE / "run_clm.py"),
            f"{clm} {hf} --per_device_train_batch_size 4 --gradient_accumulation_steps 2",
        ),
        "Lightning": ("transformers", "train_lightning.py", "--strategy ddp --accumulate 2"),
        "DeepSpeed, ZeRO 1": ("deepspeed", "train_deepspeed.py", "--stage 1 --micro_batch 4"),
        "TorchRec": ("torchrec", recommender, "--batch-size 128"),
    }
    return [
        PublicCommand(
            name=name,
            library=library,
            folder=folder,
            script=str(JOBS / script),
            words=(*text.split(), *(() if script.endswith("run_clm.py") else ("--outcome", "report.txt"))),
        )
        for name, (library, script, text) in words.items()
    ]


def _copy(source: Path, work: Path) -> Path:
    """Return a copy of a folder, as scripts write beside themselves."""
    if source.is_dir():
        shutil.copytree(source, work / source.name, dirs_exist_ok=True)
    return work / source.name


def _write_tokens(folder: Path) -> None:
    """Write random tokens as nanoGPT reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in ("train", "val"):
        rng.integers(0, _WORDS, _TOKENS, dtype=np.uint16).tofile(folder / f"{name}.bin")
