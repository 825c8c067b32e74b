"""Causal language modelling by Hugging Face's Trainer, with arguments as its example run_clm.py names them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    """Arguments of the model."""

    model_type: str = field(default="gpt2")
    config_overrides: str | None = field(default=None)


@dataclass
class DataArguments:
    """Arguments of the data."""

    block_size: int = field(default=128)


class Blocks(torch.utils.data.Dataset):
    """Blocks of random tokens."""

    def __init__(self, size: int, vocab_size: int) -> None:
        self.size, self.vocab_size = size, vocab_size

    def __len__(self) -> int:
        """Return the number of blocks."""
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one block."""
        tokens = torch.randint(self.vocab_size, (self.size,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train a model of random weights."""
    model_args, data_args, training_args = HfArgumentParser(
        (ModelArguments, DataArguments, TrainingArguments)
    ).parse_args_into_dataclasses()
    config = CONFIG_MAPPING[model_args.model_type]()
    if model_args.config_overrides:
        config.update_from_string(model_args.config_overrides)
    model = AutoModelForCausalLM.from_config(config)
    Trainer(model, training_args, train_dataset=Blocks(data_args.block_size, config.vocab_size)).train()


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
