"""Texts of generated training scripts: options in drawn words, and one body for each kind of checkpoint."""

from __future__ import annotations

from string import Template

_HEAD = Template('''\
"""A training as its author wrote it."""
import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch import nn

import watch

parser = argparse.ArgumentParser()
$arguments
args = parser.parse_args()
$config
batch, accumulate, out, steps = $batch, $accumulate, Path($out), $steps
resume = $resume
every = $every
cost = $cost
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
torch.set_num_threads(1)


def newest():
    """Return the newest checkpoint in the output folder, if there is one."""
    found = [path for path in out.glob("$pattern") if $is_checkpoint]
    return max(found, key=lambda path: path.stat().st_mtime_ns) if found else None


def asked():
    """Return the checkpoint to go on from, if any."""
    if resume in (None, False, "", "no", "none", "0"):
        return None
    return newest() if resume in (True, "1", "yes", "auto", "latest", "last") else Path(resume)

''')

_TORCH = Template('''
from torch.nn.parallel import DistributedDataParallel

if world > 1:
    dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
model = DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
order = torch.randperm(4096, generator=torch.Generator().manual_seed(1))


class Loader:
    """Micro batches of this rank; its state is how many $counted it has given."""

    def __init__(self):
        self.given = 0

    def __next__(self):
        place = $place + torch.arange(batch)
        self.given += $counts
        return $sample

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


loader = Loader()

$saving

start = 0
if (found := asked()) is not None:
    start = load(found)
end = $end
for step in range(start, end):
    watch.hold(step)
    for _ in range(accumulate):
        ids = next(loader)
        watch.saw(step, accumulate, ids)
        time.sleep(cost)
        (model(torch.randn(batch, 16)).square().mean() / accumulate).backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % every == 0 or step + 1 == end:
        path = out / $name
        save(step + 1, path)
        watch.saved(step + 1, path)
if world > 1:
    dist.destroy_process_group()
''')

_SAVING = {
    "plain": Template("""
def save(step, path):
    states = [loader.state_dict()] * world
    if world > 1:
        dist.all_gather_object(states, loader.state_dict())
    if rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "batch": batch}
        torch.save(state | {"loaders": states}, path)
    if world > 1:
        dist.barrier()


def load(path):
    state = torch.load(path, map_location="cpu")
    $strict
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loaders"][rank])
    return state["step"]
"""),
    "per-rank": Template("""
def save(step, path):
    path.mkdir(parents=True, exist_ok=True)
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "batch": batch}
    torch.save(state | {"loader": loader.state_dict()}, path / f"rank{rank}.pt")
    if world > 1:
        dist.barrier()


def load(path):
    state = torch.load(path / f"rank{rank}.pt")
    $strict
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    return state["step"]
"""),
    "dcp": Template("""
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def state_of(step):
    weights, moments = get_state_dict(model, optimizer)
    own = {f"loader{rank}": torch.tensor(loader.given)}
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step), "batch": torch.tensor(batch), **own}


def save(step, path):
    dcp.save(state_of(step), checkpoint_id=path)


def load(path):
    state = state_of(0)
    dcp.load(state, checkpoint_id=path)
    $strict
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    loader.load_state_dict({"given": int(state[f"loader{rank}"])})
    return int(state["step"])
"""),
}

_STRICT = """if state["batch"] != batch:
        raise ValueError(f"the checkpoint was written with a batch of {int(state['batch'])}, not {batch}")"""

_TRAINER = '''
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    """Sequences that begin with their number, as two tokens."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (8,), generator=torch.Generator().manual_seed(index))
        tokens[0], tokens[1] = index // 64, index % 64
        return {"input_ids": tokens, "labels": tokens}


class Steps(TrainerCallback):
    """Notes checkpoints."""

    def on_step_begin(self, args, state, control, **kwargs):
        watch.hold(state.global_step)

    def on_save(self, args, state, control, **kwargs):
        watch.saved(state.global_step, out / f"checkpoint-{state.global_step}")


class WatchedTrainer(Trainer):
    """Notes the samples of each micro batch."""

    def training_step(self, model, inputs, *others, **kwargs):
        ids = inputs["input_ids"][:, 0] * 64 + inputs["input_ids"][:, 1]
        watch.saw(self.state.global_step, accumulate, ids)
        time.sleep(cost)
        return super().training_step(model, inputs, *others, **kwargs)


config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64, n_positions=8)
options = TrainingArguments(
    output_dir=str(out), per_device_train_batch_size=batch, gradient_accumulation_steps=accumulate, max_steps=steps,
    save_steps=every, save_strategy="steps", use_cpu=True, report_to=[], disable_tqdm=True, seed=7,
)
trainer = WatchedTrainer(GPT2LMHeadModel(config), options, train_dataset=Tokens(), callbacks=[Steps()])
found = asked()
trainer.train(resume_from_checkpoint=str(found) if found is not None else None)
if dist.is_initialized():
    dist.destroy_process_group()
'''

_LIGHTNING = '''
import lightning
from lightning.pytorch.callbacks import Callback, ModelCheckpoint


class Loader:
    """Micro batches of this rank, from where its data module stands."""

    def __init__(self, module):
        self.module = module

    def __len__(self):
        return 4096

    def __iter__(self):
        for given in range(self.module.given, 4096):
            yield ((given * batch + torch.arange(batch)) * world + rank) % 4096


class Data(lightning.LightningDataModule):
    """Samples whose state is the number of micro batches that the training has had."""

    def __init__(self):
        super().__init__()
        self.given = 0

    def train_dataloader(self):
        return Loader(self)

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Task(lightning.LightningModule):
    """A small regression."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def training_step(self, ids, index):
        watch.saw(self.global_step, accumulate, ids)
        self.trainer.datamodule.given += 1
        time.sleep(cost)
        return self.net(torch.randn(len(ids), 16)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Steps(Callback):
    """Waits to be killed."""

    def on_train_batch_start(self, trainer, module, ids, index):
        watch.hold(trainer.global_step)


class Checkpoints(ModelCheckpoint):
    """Notes checkpoints."""

    def _save_checkpoint(self, trainer, filepath):
        super()._save_checkpoint(trainer, filepath)
        watch.saved(trainer.global_step, filepath)


trainer = lightning.Trainer(
    accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_steps=steps, logger=False,
    accumulate_grad_batches=accumulate, default_root_dir=out, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[Steps(), Checkpoints(out / "checkpoints", "{step}", every_n_train_steps=every, save_top_k=-1)],
)
found = asked()
trainer.fit(Task(), datamodule=Data(), ckpt_path=found)
if dist.is_initialized():
    dist.destroy_process_group()
'''
_BODIES = {"trainer": _TRAINER, "lightning": _LIGHTNING}


def script(kind: str, parts: dict[str, str]) -> str:
    """Return the text of a script.

    Args:
        kind: of checkpoint, one of ``KINDS``.
        parts: what is drawn, under the names that the templates give it.
    """
    if kind in _BODIES:
        return _HEAD.substitute(parts) + _BODIES[kind]
    saving = _SAVING[kind].substitute(strict=_STRICT if parts["strict"] else "pass")
    return _HEAD.substitute(parts) + _TORCH.substitute(parts, saving=saving)


KINDS = (*_SAVING, *_BODIES)
