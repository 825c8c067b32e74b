"""A Hugging Face Trainer on a tiny GPT-2 of random weights, as its users write it; it says what it truly did."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

SEQ_LEN = 32


@dataclass
class Arguments:
    n_layer: int = field(default=2)
    outcome: str = field(default="", metadata={"help": "file that receives what was done"})


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 128, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Count(TrainerCallback):
    def __init__(self) -> None:
        self.steps, self.micro_batches = 0, 0

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.steps += 1
        self.micro_batches += 1

    def on_substep_end(self, *args: object, **kwargs: object) -> None:
        self.micro_batches += 1


def main() -> None:
    own, arguments = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=own.n_layer, n_embd=64, n_head=4, vocab_size=128, n_positions=SEQ_LEN))
    n_params = sum(parameter.numel() for parameter in model.parameters())
    count = Count()
    trainer = Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks=[count])
    done = trainer.train()
    if trainer.args.process_index == 0:
        wrapped = [type(module).__name__ for module in trainer.model_wrapped.modules()]
        report = {
            "steps": count.steps,
            "micro_batches": count.micro_batches,
            "wrapped": wrapped[0],
            "fsdp": any(name.startswith(("FSDP", "FullyShard")) for name in wrapped),
            "n_params": n_params,
            "metrics": done.metrics,
        }
        Path(own.outcome).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
