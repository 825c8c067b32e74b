"""Trains and evaluates as its options say, and writes what it knows of its own time.

Evaluating is the block without gradients; where each batch has one, or none has, all from the first forward to the end
of the last one. Lightning's and the HF Trainer's are what they call so. Saving is ``torch.save``. All else belongs to
the training: opening a loader, a stall before or behind, switching the mode. An epoch is noted with its time without
evaluating and saving.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

OPTIONS = json.loads(sys.argv[1])
OUT = Path(sys.argv[2])
epochs: list[tuple[float, float, int]] = []  # begin, end, samples
away = [0.0]  # seconds of evaluating and saving


@contextlib.contextmanager
def left_out():
    """Count what runs within as no part of the training; in another such block, once."""
    began, before = time.perf_counter(), away[0]
    yield
    away[0] = before + time.perf_counter() - began


def stall(name: str) -> None:
    """Wait as long as an option says."""
    time.sleep(OPTIONS[name])


class Samples(IterableDataset):
    """As many batches of samples as an option says; opening them takes time."""

    def __init__(self, batches: str, opens: str, each: str) -> None:
        self.batches, self.opens, self.each = batches, opens, each

    def __iter__(self):
        stall(self.opens)
        for place in range(OPTIONS[self.batches] * OPTIONS["batch"]):
            if place % OPTIONS["batch"] == 0:
                stall(self.each)
            yield torch.randn(16)


class Network(nn.Module):
    """A network whose forward takes a drawn time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each of (samples, 16)."""
        stall("forward" if self.training else "forward_evaluating")
        return self.layers(x)


def loader(batches: str, opens: str, each: str) -> DataLoader:
    """Return a loader without workers, so that the time is that of this process."""
    return DataLoader(Samples(batches, opens, each), batch_size=OPTIONS["batch"])


def save(network: nn.Module) -> None:
    """Save a checkpoint that takes a drawn time, where one is wanted."""
    if OPTIONS["save"]:
        with left_out():
            torch.save(Slow(network.state_dict()), OUT.with_suffix(".pt"))


class Slow(dict):
    """A state whose pickling takes a drawn time."""

    def __reduce__(self):
        stall("save")
        return dict, (dict(self),)


def evaluate(network: nn.Module) -> None:
    """Evaluate a network, with the stalls that options say before and behind the call."""
    network.eval()
    stall("before")
    _EVALUATIONS[OPTIONS["how"]](network)
    if OPTIONS["trains_first"]:
        network.train()
    stall("behind")
    network.train()


def within(context: Callable[[], AbstractContextManager[None]], network: nn.Module) -> None:
    """Evaluate all batches in one block without gradients, which opens the loader and follows the metric."""
    with left_out(), context():
        for x in loader("evaluation", "opens_evaluating", "fetch"):
            network(x)
            stall("metric")


def decorated(network: nn.Module) -> None:
    """Evaluate by a function without gradients."""

    @torch.no_grad()
    def call() -> None:
        for x in loader("evaluation", "opens_evaluating", "fetch"):
            network(x)
            stall("metric")

    with left_out():
        call()


def alone(context: Callable[[], AbstractContextManager[None]], network: nn.Module) -> None:
    """Evaluate with a block for each batch, or in evaluation mode alone: from the first forward to the last."""
    batches = list(loader("evaluation", "opens_evaluating", "fetch"))
    with left_out():
        for place, x in enumerate(batches):
            stall("metric" if place else "nothing")
            with context():
                network(x)


_EVALUATIONS = {
    "no_grad": partial(within, torch.no_grad),
    "inference": partial(within, torch.inference_mode),
    "decorated": decorated,
    "each": partial(alone, torch.no_grad),
    "mode": partial(alone, contextlib.nullcontext),
}


def plain() -> None:
    """Train in a loop of one's own, that of timm included: epochs, or steps with evaluations between them."""
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    batches, steps = loader("steps", "opens", "fetch"), 0
    for _ in range(OPTIONS["epochs"]):
        began, before, samples = time.perf_counter(), away[0], 0
        network.train()
        for x in batches:
            loss = network(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stall("update")
            samples, steps = samples + len(x), steps + 1
            if OPTIONS["every"] and steps % OPTIONS["every"] == 0:
                evaluate(network)
        if not OPTIONS["every"] and OPTIONS["evaluation"]:
            evaluate(network)
        save(network)
        stall("upload")
        note(began, before, samples)


def note(began: float, before: float, samples: int) -> None:
    """Note an epoch that ends now."""
    epochs.append((began, time.perf_counter() - (away[0] - before), samples))


def lightning() -> None:
    """Train by Lightning, whose loop evaluates and saves by itself."""
    import logging
    import warnings

    import lightning.pytorch as pl

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def forward(self, x):
            return self.network(x)

        def training_step(self, x, _number):
            return self(x).sum()

        def validation_step(self, x, _number):
            self(x)
            stall("metric")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

        def on_train_batch_end(self, *_):
            stall("update")

        def on_train_epoch_start(self):
            stall("upload")
            stall("behind")

    marks = []

    class Marks(pl.Callback):
        def on_train_epoch_start(self, *_):
            marks.append((time.perf_counter(), away[0]))

        def on_train_end(self, *_):
            marks.append((time.perf_counter(), away[0]))

    trainer = pl.Trainer(
        max_epochs=OPTIONS["epochs"],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[Marks()],
        limit_val_batches=1.0 if OPTIONS["evaluation"] else 0,
        default_root_dir=str(OUT.parent),
    )
    loop = trainer.fit_loop.epoch_loop.val_loop
    evaluate = loop.run

    def run():
        with left_out():
            return evaluate()

    loop.run = run
    trainer.fit(Module(), loader("steps", "opens", "fetch"), loader("evaluation", "opens_evaluating", "fetch"))
    for (began, before), (end, after) in pairwise(marks):
        epochs.append((began, end - (after - before), OPTIONS["steps"] * OPTIONS["batch"]))


def trainer() -> None:
    """Train by the HF Trainer, which evaluates each batch without gradients by itself."""
    import warnings

    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

    warnings.simplefilter("ignore")

    class Model(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config) -> None:
            super().__init__(config)
            self.network = Network()
            self.post_init()

        def forward(self, x, labels=None):
            out = self.network(x)
            return {"loss": out.sum(), "logits": out}

    class Listed(torch.utils.data.Dataset):
        def __init__(self, batches: str) -> None:
            self.batches = batches

        def __len__(self) -> int:
            return OPTIONS[self.batches] * OPTIONS["batch"]

        def __getitem__(self, place):
            if place % OPTIONS["batch"] == 0:
                stall("fetch")
            return {"x": torch.randn(16), "labels": torch.zeros(1)}

    marks, now = [], []

    class Timed(Trainer):
        def prediction_step(self, *args, **kwargs):
            now.append(time.perf_counter())
            done = super().prediction_step(*args, **kwargs)
            now.append(time.perf_counter())
            return done

        def evaluate(self, *args, **kwargs):
            stall("before")
            done = super().evaluate(*args, **kwargs)
            away[0] += now[-1] - now[0]
            now.clear()
            stall("behind")
            return done

    class Marks(TrainerCallback):
        def on_epoch_begin(self, *_, **__):
            marks.append((time.perf_counter(), away[0]))
            stall("opens")

        def on_step_end(self, *_, **__):
            stall("update")

        def on_train_end(self, *_, **__):
            marks.append((time.perf_counter(), away[0]))

    arguments = TrainingArguments(
        output_dir=str(OUT.parent / "hf"),
        num_train_epochs=OPTIONS["epochs"],
        per_device_train_batch_size=OPTIONS["batch"],
        per_device_eval_batch_size=OPTIONS["batch"],
        eval_strategy="epoch" if OPTIONS["evaluation"] else "no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
        optim="sgd",
    )
    Timed(
        model=Model(PretrainedConfig()),
        args=arguments,
        train_dataset=Listed("steps"),
        eval_dataset=Listed("evaluation"),
        callbacks=[Marks()],
    ).train()
    for (began, before), (end, after) in pairwise(marks):
        epochs.append((began, end - (after - before), OPTIONS["steps"] * OPTIONS["batch"]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"plain": plain, "lightning": lightning, "trainer": trainer}[OPTIONS["kind"]]()
    OUT.write_text(json.dumps(epochs))
