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
    """One command, with the sizes that it is launched with, one after the other.

    Args:
        name: for people.
        library: whose interpreter runs it.
        folder: where it is typed.
        script: path in that folder, or of a file anywhere.
        words: of the script, whatever the size.
        sizes: further words of each launch.
        processes: of each launch, on one node.
        needs_devices: whether the script asks for accelerators, which the CPU has to stand for.
        outputs: files and folders in ``folder`` from which the script would go on, and which are removed before.
    """

    name: str
    library: str
    folder: Path
    script: str
    words: str
    sizes: tuple[str, ...]
    processes: tuple[int, ...] = (2, 2, 2, 2)
    needs_devices: bool = False
    outputs: tuple[str, ...] = ()

    def launcher_words(self, size: int) -> list[str]:
        """Return the words of the component ``dist.ddp`` for one of the sizes."""
        return ["-j", f"1x{self.processes[size]}", "--script", self.script, "--", *self.script_words(size)]

    def script_words(self, size: int) -> list[str]:
        """Return the script's words for one of the sizes."""
        return f"{self.words} {self.sizes[size]}".split()


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
    same = "--dataset=tiny --device=cpu --compile=False --dtype=float32 --eval_interval=1000 --eval_iters=1"
    same += " --max_iters=16 --gradient_accumulation_steps=2"
    on_cpu = {"library": "torch", "needs_devices": True}
    return [
        PublicCommand(
            name="nanoGPT",
            folder=nano,
            script="train.py",
            words=same,
            sizes=(
                "--n_layer=2 --n_head=4 --n_embd=64 --block_size=64 --batch_size=4",
                "--n_layer=6 --n_head=4 --n_embd=128 --block_size=64 --batch_size=8",
                "--n_layer=4 --n_head=4 --n_embd=64 --block_size=128 --batch_size=2",
                "--n_layer=3 --n_head=6 --n_embd=192 --block_size=64 --batch_size=4",
            ),
            **on_cpu,
        ),
        PublicCommand(
            name="nanoGPT, config file",
            folder=nano,
            script="train.py",
            words=f"config/train_shakespeare_char.py {same} --block_size=64",
            sizes=(
                "--n_layer=3 --n_head=6 --n_embd=96 --batch_size=8",
                "--n_layer=6 --n_head=6 --n_embd=96 --batch_size=4",
                "--n_layer=2 --n_head=6 --n_embd=192 --batch_size=16",
                "--n_layer=5 --n_head=6 --n_embd=144 --batch_size=8",
            ),
            **on_cpu,
        ),
        PublicCommand(
            name="PyTorch's FSDP2 example",
            folder=examples / "FSDP2",
            script="example.py",
            words="",
            sizes=("", "--mixed-precision", "--explicit-prefetching", "--mixed-precision --explicit-prefetching"),
            processes=(2, 2, 1, 1),
            outputs=("checkpoints",),
            **on_cpu,
        ),
        PublicCommand(
            name="PyTorch's DDP tutorial",
            folder=examples / "ddp-tutorial-series",
            script="multigpu_torchrun.py",
            words="2 10",
            sizes=("", "--batch_size 8", "--batch_size 16", "--batch_size 64"),
            outputs=("snapshot.pt",),
            **on_cpu,
        ),
    ]


def _of_libraries(work: Path) -> list[PublicCommand]:
    folder = work / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    titan = "--module llama3 --config llama3_debugmodel --training.steps 12 --parallelism.spmd_backend partial_dtensor"
    titan_sizes = tuple(
        f"--training.local_batch_size {batch} --training.seq_len {length}"
        for batch, length in ((2, 64), (4, 64), (2, 256), (4, 128))
    )
    hf = "--use_cpu True --max_steps 16 --report_to none --output_dir out --save_strategy no"
    clm = "--model_type gpt2 --block_size 64 --config_overrides n_embd={},n_layer={},n_head=6,vocab_size=1000"
    megatron, recommender = "train_megatron_core.py", "train_torchrec.py"
    batches = tuple(
        f"--micro-batch-size {micro} --global-batch-size {whole}" for micro, whole in ((2, 8), (4, 8), (2, 16), (8, 32))
    )
    commands: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
        "torchtitan": ("torchtitan", "train_torchtitan.py", titan, titan_sizes),
        "torchtitan, tensor parallel": (
            "torchtitan",
            "train_torchtitan.py",
            f"{titan} --parallelism.tensor_parallel_degree 2",
            titan_sizes,
        ),
        "Megatron-Core, recomputation": ("megatron", megatron, "--recompute-granularity full", batches),
        "Megatron-Core, experts": ("megatron", megatron, "--expert-model-parallel-size 2 --num-experts 4", batches),
        "Hugging Face Trainer": (
            "transformers",
            "train_hf.py",
            hf,
            tuple(
                f"--per_device_train_batch_size {batch} --n_layer {layers}"
                for batch, layers in ((4, 3), (8, 3), (2, 6), (4, 8))
            ),
        ),
        "Hugging Face run_clm": (
            "transformers",
            str(HERE / "run_clm.py"),
            f"{hf} --gradient_accumulation_steps 2",
            tuple(
                f"{clm.format(width, layers)} --per_device_train_batch_size {batch}"
                for width, layers, batch in ((96, 3, 4), (192, 3, 4), (96, 6, 8), (192, 6, 2))
            ),
        ),
        "Lightning": (
            "transformers",
            "train_lightning.py",
            "--strategy ddp",
            tuple(f"--batch_size {batch} --accumulate {times}" for batch, times in ((4, 2), (16, 1), (8, 4), (32, 2))),
        ),
        "DeepSpeed": (
            "deepspeed",
            "train_deepspeed.py",
            "--stage 1",
            tuple(f"--micro_batch {batch} --accumulate {times}" for batch, times in ((4, 2), (8, 2), (2, 4), (16, 1))),
        ),
        "TorchRec": (
            "torchrec",
            recommender,
            "",
            tuple(
                f"--batch-size {batch} --tables {tables}"
                for batch, tables in ((128, "uneven"), (512, "uneven"), (128, "large"), (256, "large"))
            ),
        ),
    }
    return [
        PublicCommand(
            name=name,
            library=library,
            folder=folder,
            script=str(JOBS / script),
            words=words if script.endswith("run_clm.py") else f"{words} --outcome report.txt",
            sizes=sizes,
        )
        for name, (library, script, words, sizes) in commands.items()
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
