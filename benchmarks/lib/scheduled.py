"""A real training of a tiny network that keeps to a schedule, and writes down what it processed and when.

Started by ``throughput.py``. Rank 0 keeps the time, and the other ranks meet it in each backward. The schedule is
absolute: a step that the machine delays is followed by shorter ones, so that the rate in the long run stays the one
that was drawn. Evaluation and saving do not count in it, and it begins anew while the first steps warm up.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import time
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.nn.parallel import DistributedDataParallel

from torchx_cubicml import measure

WIDTH, VOCABULARY = 16, 64
STEPS_TO_SETTLE = 3  # whose delays are not caught up
SPIN_S = 2e-4  # what a sleep may be late by
LATE_S = 5e-4  # what an optimizer takes


class Pace:
    """The time that the schedule asks for; ``moment`` is where it is by now. Only rank 0 waits."""

    def __init__(self, is_kept: bool) -> None:
        self._is_kept = is_kept
        self.moment = time.perf_counter()

    def until(self, moment: float) -> None:
        """Wait for a moment, which may have passed."""
        if not self._is_kept:
            return
        while (left := moment - time.perf_counter()) > 0:
            if left > SPIN_S:
                time.sleep(left - SPIN_S)

    def behind_s(self) -> float:
        """Return by how much the schedule is missed."""
        return max(time.perf_counter() - self.moment, 0.0)

    def begin_anew(self, *, behind_s: float = 0.0) -> None:
        """Go on from now, with that much to make up for."""
        self.moment = time.perf_counter() - behind_s


class Log:
    """Record of events and their times, in the order of their ends."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self._since: float | None = None

    def begin(self) -> None:
        """Note that the training begins."""
        self.events.append(("begin", time.perf_counter()))

    def work(self, samples: int, tokens: int) -> None:
        """Note that a training forward begins, with what the whole job consumes in it; evaluation is over."""
        now = time.perf_counter()
        if self._since is not None:
            self.events.append(("evaluation", self._since, now))
            self._since = None
        self.events.append(("work", now, samples, tokens))

    def evaluate(self) -> None:
        """Note that the first forward of an evaluation begins."""
        self._since = time.perf_counter()

    def save(self, start: float) -> None:
        """Note that saving has ended."""
        self.events.append(("save", start, time.perf_counter()))

    def step(self, number: int) -> None:
        """Note that a step of an optimizer has ended."""
        self.events.append(("step", time.perf_counter(), number))

    def line(self) -> None:
        """Note that a line reports the steps up to the last one."""
        self.events.append(("line", next(event[1] for event in reversed(self.events) if event[0] == "step")))


class SlowDisk(io.BytesIO):
    """A file that is written by some moment."""

    def __init__(self, pace: Pace, end: float) -> None:
        super().__init__()
        self._pace, self._end = pace, end

    def write(self, data: object) -> int:
        """Write when the time has come."""
        self._pace.until(self._end)
        return super().write(data)  # type: ignore[arg-type]  # any buffer, as the base takes it


class SlowWriter(checkpoint.FileSystemWriter):
    """Writes distributed checkpoints by some moment."""

    wait = staticmethod(lambda: None)

    def write_data(self, *args: object) -> object:
        """Write when the time has come."""
        self.wait()
        return super().write_data(*args)


class Tokens(nn.Module):
    """A network over tokens ``[samples, seq_len]``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.embedding(tokens).mean(dim=1))


class Networks:
    """The trained network with what trains it, in one of the styles of the schedule."""

    def __init__(self, style: str, *, has_tokens: bool) -> None:
        self._style, self._has_tokens = style, has_tokens
        self.module = Tokens() if has_tokens else nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
        self.model = DistributedDataParallel(self.module) if dist.is_initialized() else self.module
        self._other = copy.deepcopy(self.module).requires_grad_(False) if style in {"teacher", "ema"} else None
        groups = [[*self.module.parameters()]]
        if style in {"two_optimizers", "alternating"}:
            groups = [groups[0][:2], groups[0][2:]] if len(groups[0]) > 2 else [groups[0][:1], groups[0][1:]]
        self._optimizers = [torch.optim.AdamW(group, lr=1e-4) for group in groups]

    def batch(self, samples: int, length: int) -> torch.Tensor:
        """Return a batch."""
        return torch.randint(VOCABULARY, (samples, length)) if self._has_tokens else torch.randn(samples, WIDTH)

    def train(self, batch: torch.Tensor, *, is_last: bool) -> None:
        """Run a forward and a backward."""
        target = None
        if self._other is not None or self._style == "own_target":
            with torch.no_grad():
                target = (self._other if self._other is not None else self.module)(batch)
        with nullcontext() if is_last or self.model is self.module else self.model.no_sync():
            out = self.model(batch)
            loss = out.square().mean() if target is None else nn.functional.mse_loss(out, target)
            loss.backward()

    def step(self, index: int, log: Log) -> None:
        """Step the optimizers whose turn it is."""
        for number, optimizer in enumerate(self._optimizers):
            if self._style != "alternating" or index % 2 == number:
                optimizer.step()
                log.step(number)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        if self._style == "ema" and self._other is not None:
            with torch.no_grad():
                for kept, now in zip(self._other.parameters(), self.module.parameters(), strict=True):
                    kept.lerp_(now, 0.01)


class Gan:
    """Two networks against each other, in the order of the usual example: real, fake, the other one.

    What it processes are the real samples; the discriminator sees as many of the generator's, twice.
    """

    def __init__(self) -> None:
        self.model = self.module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self._generator = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self._optimizers = [torch.optim.Adam(each.parameters(), lr=1e-4) for each in (self.module, self._generator)]
        self._fake = torch.empty(0)

    def batch(self, samples: int, length: int) -> torch.Tensor:
        """Return a batch."""
        return torch.randn(samples, WIDTH)

    def train(self, batch: torch.Tensor, *, is_last: bool) -> None:
        """Run the forwards and backwards of the discriminator."""
        self._fake = self._generator(torch.randn(len(batch), 8))
        for inputs, label in ((batch, 1.0), (self._fake.detach(), 0.0)):
            out = self.model(inputs)
            nn.functional.binary_cross_entropy_with_logits(out, torch.full_like(out, label)).backward()

    def step(self, index: int, log: Log) -> None:
        """Step the discriminator, then train and step the generator."""
        self._optimizers[0].step()
        log.step(0)
        out = self.model(self._fake)
        nn.functional.binary_cross_entropy_with_logits(out, torch.ones_like(out)).backward()
        self._optimizers[1].step()
        log.step(1)
        for optimizer in self._optimizers:
            optimizer.zero_grad()


class Training:
    """The loop over a schedule, as ``trainings.Schedule`` describes it."""

    def __init__(self, schedule: dict[str, object], folder: Path) -> None:
        self._schedule, self._folder = schedule, folder
        self._is_first = not dist.is_initialized() or dist.get_rank() == 0
        self._pace, self.log = Pace(self._is_first), Log()
        self._lengths = schedule["seq_lens"] or [0] * len(schedule["seconds"])
        style = schedule["style"]
        self._networks = Gan() if style == "gan" else Networks(style, has_tokens=bool(schedule["seq_lens"]))
        self._pauses = {(pause["after"], pause["kind"]): pause["seconds"] for pause in schedule["pauses"]}
        self._since_line = (0.0, 0)  # when the last line was printed, and what was consumed since

    def run(self) -> None:
        """Train."""
        warm = nn.Linear(WIDTH, WIDTH)  # what torch loads at its first backward is not to fall into a step
        warm(torch.randn(2, WIDTH)).sum().backward()
        if dist.is_initialized():
            dist.barrier()
        self._pace.begin_anew()
        self.log.begin()
        self._since_line = (self._pace.moment, 0)
        for index in range(len(self._schedule["seconds"])):
            self._step(index)
            for (after, kind), seconds in self._pauses.items():
                if after == index:
                    self._pause(kind, seconds)

    def _step(self, index: int) -> None:
        pace, batches, length = self._pace, self._schedule["batches"][index], self._lengths[index]
        is_after_pause = index > 0 and any(after == index - 1 for after, _ in self._pauses)
        if not is_after_pause:
            pace.until(pace.moment + self._schedule["loader_s"][index])
        pace.moment += self._schedule["seconds"][index]
        for number, size in enumerate(batches):
            batch, samples = self._networks.batch(size, length), size * self._schedule["processes"]
            self.log.work(samples, samples * length)
            self._networks.train(batch, is_last=number == len(batches) - 1)
        pace.until(pace.moment)
        self._networks.step(index, self.log)
        self._report(index, sum(batches) * self._schedule["processes"], length)
        if index < STEPS_TO_SETTLE and pace.behind_s() > LATE_S:
            pace.begin_anew()

    def _report(self, index: int, samples: int, length: int) -> None:
        """Report the step where the script is the source."""
        source, every = self._schedule["source"], self._schedule["log_every"]
        if source == "measure":
            measure.step(samples=samples, tokens=samples * length if length else None)
        since, consumed = self._since_line
        work = consumed + samples * (length or 1)
        self._since_line = since, work
        if not source.startswith("log") or (index + 1) % every:
            return
        now = next(event[1] for event in reversed(self.log.events) if event[0] == "step")
        if source == "log_rates":
            said = f"speed {work / (now - since):.3f}"
        else:
            said = f"time {1000 * (now - since) / every:.4f} ms, batch {work / every:.3f}"
        if self._is_first:
            print(f"step {index + 1} loss 0.1 {said}", flush=True)
        self.log.line()
        self._since_line = now, 0

    def _pause(self, kind: str, seconds: float) -> None:
        behind_s = self._pace.behind_s()
        if kind in {"save", "distributed_save"}:
            self._save(kind, time.perf_counter() + seconds)
        else:
            self._evaluate(kind, time.perf_counter() + seconds)
        self._pace.begin_anew(behind_s=behind_s)

    def _evaluate(self, kind: str, end: float) -> None:
        model = self._networks.module if kind.endswith("unwrapped") else self._networks.model
        batch = self._networks.batch(4, self._lengths[0] or 1)
        self.log.evaluate()
        with ExitStack() as stack:
            if kind.startswith("eval"):
                model.eval()
                stack.callback(model.train)
            stack.enter_context(torch.inference_mode() if kind.startswith("inference") else torch.no_grad())
            for left in (0.6, 0.3, 0.0):
                model(batch)
                self._pace.until(end - left * (end - time.perf_counter()))

    def _save(self, kind: str, end: float) -> None:
        state, start = {"model": self._networks.module.state_dict()}, time.perf_counter()
        if kind == "distributed_save":
            writer = SlowWriter(self._folder / f"step-{len(self.log.events)}")
            writer.wait = lambda: self._pace.until(end)
            checkpoint.save(state, storage_writer=writer)
        elif self._is_first:
            torch.save(state, SlowDisk(self._pace, end))
        else:
            return
        self.log.save(start)


def main() -> None:
    """Train as the schedule of this name says, and write the log on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", type=Path, required=True, help="JSON: name -> schedule")
    parser.add_argument("--loader", default="own", help="name of the schedule to keep to")
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # noqa: TID251 - a script as users write them
        dist.init_process_group("gloo")
    training = Training(json.loads(args.schedules.read_text())[args.loader], args.log.parent)
    training.run()
    if not dist.is_initialized() or dist.get_rank() == 0:
        args.log.write_text(json.dumps(training.log.events))
    if dist.is_initialized():
        dist.barrier()
        # Torch waits for gloo's threads while it holds the interpreter's lock, and one of them may still want it.
        time.sleep(0.2)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
