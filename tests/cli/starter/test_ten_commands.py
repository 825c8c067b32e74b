"""Commands of ten kinds: each starter loads, fits its command, and another config is written and read back."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.cli.starter import starter_space, unredirected_outputs
from torchx_cubicml.launch import Launch, change_for_profiling, read_config, write_config
from torchx_cubicml.space.toml import load_space

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "plain.py": "import torch\n",
    "train.py": "import argparse, torch\ntorch.save({}, 'x')\n",
    "kv.py": "import os\nout = os.environ.get('OUT_DIR')\nprint(f'step {s}: {r:.1f} samples/s')\n",
    "job.py": "import hydra\n@hydra.main(config_name='c')\ndef main(cfg): ...\n",
    "nano.py": "exec(open('configurator.py').read())\n",
    "config.py": "out_dir = 'x'\n",
    "ds.json": json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}),
    "acc.yaml": "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_forward_prefetch: false\n",
    "tt.toml": "[job]\ndump_folder = './out'\n[training]\nlocal_batch_size = 2\nglobal_batch_size = 32\nseq_len = 64\n"
    "[parallelism]\ntensor_parallel_degree = 1\npipeline_parallel_degree = 1\ncontext_parallel_degree = 1\n"
    "data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1\n[activation_checkpoint]\nmode = 'none'\n",
}
MEGATRON = (
    "--micro-batch-size 2 --global-batch-size 64 --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
    "--seq-length 64 --tensor-model-parallel-size 2 --lr 1e-4"
)
COMMANDS = {
    "no flags": ("plain.py", ""),
    "torchrun script": ("train.py", "--batch_size 4 --accumulate=2 --lr 0.1 --num_workers 2 --out_dir=a"),
    "module": ("-m train", "--batch-size 4 --log-dir a"),
    "key=value": ("kv.py", "batch_size=4 +grad_accum=2 workers=1 name='a b'"),
    "hydra": ("job.py", "trainer.batch_size=4 ++trainer.accumulate_grad_batches=2 \"mode='x'\" lr=0.1,0.2 -m"),
    "hf": ("train.py", "--do_train --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --output_dir out"),
    "megatron": ("pretrain_gpt.py", MEGATRON),
    "torchtitan": ("-m torchtitan.train", "--job.config_file tt.toml"),
    "deepspeed": ("train.py", "--deepspeed_config ds.json"),
    "nanogpt": ("nano.py", "config.py --batch_size=8 --gradient_accumulation_steps=4 --compile=False"),
    "accelerate": ("kv.py", ""),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_starter_is_ready_to_use(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    program, args = COMMANDS[kind]
    user = Launch(
        program=program.removeprefix("-m "),
        is_module=program.startswith("-m "),
        script_args=tuple(shlex.split(args)),
        world_size=8,
        launcher="accelerate" if kind == "accelerate" else "",
        launcher_args=("--config_file", "acc.yaml") if kind == "accelerate" else (),
    )
    (tmp_path / "s.toml").write_text(starter_space(user, ""))
    space = load_space("s.toml")
    workload, config = read_config(user, space)
    bound = space.bind(workload=workload, current=config)
    assert bound.why_illegal(config) is None
    assert bound.size() > 1
    assert write_config(user, space, config) == user
    assert unredirected_outputs(user, space) == ()
    for other in bound.sample(5, rng=np.random.default_rng(0)):
        assert read_config(write_config(user, space, other), space)[1] == other
    profiled = change_for_profiling(user, space, {"scratch": "s", "launch_id": "1"})
    assert read_config(profiled, space)[1] == config
