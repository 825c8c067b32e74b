"""Measures what being recorded costs a training on a CUDA device, whose kernels run while the host goes on.

    cd nanoGPT; cubicrun -- python .../benchmarks/recorder_cuda.py --layers 8 --batch 32

nanoGPT's `model.py` is the model, in bfloat16 with 512 tokens a sample. Blocks of ten steps with the recorder's hooks
and without them follow one another in pairs, in an order drawn by chance; the device is waited for at both ends of a
block. The median ratio stands with its 95 % interval from order statistics. After 80 steps the recorder still watches
each forward, as it does in the first 512: what is measured is the start of a training, which costs most.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as optimizers

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP, BLOCK = 80, 10  # steps


def training(args: argparse.Namespace) -> tuple[Any, Callable[[], None]]:
    """Return a model on the device, and a function that takes one step of its training."""
    sys.path.insert(0, ".")
    nanogpt = importlib.import_module("model")
    torch.manual_seed(0)
    sizes = {"n_layer": args.layers, "n_head": 12, "n_embd": 768, "block_size": 512, "vocab_size": args.vocabulary}
    model = nanogpt.GPT(nanogpt.GPTConfig(**sizes, bias=False)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(1000, (args.batch, 512), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            _, loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


def measured_pairs(places: list[Any], step: Callable[[], None], seconds: float) -> list[tuple[float, float]]:
    """Return the seconds of a step with the hooks and without them, of each pair of blocks."""
    away: list[dict[Any, Any]] = [{} for _ in places]

    def seconds_of_step(*, hooked: bool) -> float:
        for kept, hooks in zip(away, places, strict=True):
            source, target = (kept, hooks) if hooked else (hooks, kept)
            target.update(source)
            source.clear()
        step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(BLOCK):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / BLOCK

    order, pairs, end = random.Random(0), [], time.monotonic() + seconds
    while time.monotonic() < end:
        pair = {hooked: seconds_of_step(hooked=hooked) for hooked in order.sample([True, False], 2)}
        pairs.append((pair[True], pair[False]))
    return pairs


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="layers of the model")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step")
    parser.add_argument("--vocabulary", type=int, default=50304, help="tokens of the vocabulary")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of measuring")
    args = parser.parse_args()
    model, step = training(args)
    for _ in range(WARM_UP):
        step()
    places: list[Any] = [optimizers._global_optimizer_post_hooks, model._forward_pre_hooks, model._forward_hooks]
    if not places[0]:
        raise SystemExit("the training is not recorded: put `cubicrun --` in front of the command")
    pairs = measured_pairs(places, step, args.seconds)
    ratios, half = sorted(hooked / plain for hooked, plain in pairs), 0.98 * len(pairs) ** 0.5
    low, high = max(0, int(len(pairs) / 2 - half)), min(len(pairs) - 1, int(len(pairs) / 2 + half))
    percent = [100 * (ratio - 1) for ratio in (statistics.median(ratios), ratios[low], ratios[high])]
    step_ms = 1e3 * statistics.median(plain for _, plain in pairs)
    found = {"device": torch.cuda.get_device_name(), "step_ms": step_ms, "pairs": len(pairs)}
    print(json.dumps({**found, "cost_percent": percent[0], "interval": percent[1:]}))


if __name__ == "__main__":
    main()
