"""torchtitan's own Trainer on the CPU, whose device functions torch.cpu lacks; it says what its meshes are.

``torchtitan.train`` takes CUDA where it finds no accelerator. The words of the command are torchtitan's own.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch._utils

VOCAB = 256
WHOLE_MEMORY = SimpleNamespace(total_memory=1 << 30, name="cpu")


def make_cpu_a_device() -> None:
    """Name the CPU as the device to torchtitan, with the functions that it asks of a device."""
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, answer in {
        "get_device_name": "cpu",
        "get_device_properties": WHOLE_MEMORY,
        "memory_stats": {},
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "get_device_capability": (0, 0),
    }.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda *_, answer=answer, **__: answer)
    torch.cpu.current_device = lambda: 0  # a number, as of other devices
    if not hasattr(torch.distributed, "set_timeout"):  # it came after torch 2.13
        torch.distributed.set_timeout = lambda *_: None


def masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_mask, scale, enable_gqa, **_: object):
    """Compute FlexAttention's result by scaled_dot_product_attention: it has no backward on the CPU."""
    from torch.nn.attention.flex_attention import create_mask

    mask = create_mask(block_mask.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None


def write_assets() -> None:
    """Write a tokenizer of single characters and a text, where torchtitan's debug models look for them."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    folder = Path("tests/assets")
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "c4_test").mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(WordLevel({chr(32 + code): code for code in range(VOCAB)}, unk_token=" "))
    tokenizer.pre_tokenizer = Split("", "isolated")
    mine = f".{os.environ['RANK']}"  # every rank writes the same
    tokenizer.save(str(folder / f"tokenizer{mine}"))
    Path(folder / f"tokenizer{mine}").replace(folder / "tokenizer" / "tokenizer.json")
    lines = [json.dumps({"text": f"The quick brown fox number {number} jumps. " * 50}) for number in range(200)]
    (folder / f"text{mine}").write_text("\n".join(lines))
    (folder / f"text{mine}").replace(folder / "c4_test" / "data.json")


def main() -> None:
    """Train by torchtitan and write its own account."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--outcome", required=True)
    own, words = parser.parse_known_args()
    make_cpu_a_device()
    write_assets()
    sys.argv = [sys.argv[0], *words]
    from torchtitan.config import ConfigManager
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.tools.logging import init_logger

    init_logger()
    FlexAttention._compiled_flex_attn = staticmethod(masked_attention)
    config = ConfigManager().parse_args()
    trainer = config.build()
    for module in [each for part in trainer.model_parts for each in part.modules()]:
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo does not multiply within a reduction
    trainer.train()
    dims, training = trainer.parallel_dims, config.training
    if torch.distributed.get_rank() == 0:
        report = {
            "steps": trainer.step,
            "degrees": {name: getattr(dims, name) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")},
            "local_batch_size": training.local_batch_size,
            "seq_len": training.seq_len,
            "accumulation": trainer.gradient_accumulation_steps,
            "n_params": trainer.metrics_processor.num_flops_per_token
            and sum(parameter.numel() for part in trainer.model_parts for parameter in part.parameters()),
            "n_layers": sum(len(part.layers) for part in trainer.model_parts),
            "checkpointing": type(config.activation_checkpoint).__qualname__,
        }
        Path(own.outcome).write_text(json.dumps(report))
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
