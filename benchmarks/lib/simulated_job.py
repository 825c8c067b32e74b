"""Training that is computed instead of run: a launch of ``lib/simulator.py`` as a program with flags and log lines.

It imports no torch, and takes a second or less. Its steps are not waited for: the log lines state their throughput,
with noise drawn from the config, so that a config measured in two orders of launch is measured alike.
"""

from __future__ import annotations

import argparse
from zlib import crc32

import numpy as np
from simulator import FAMILIES, NOISE, Simulator

_STEPS = 30


class OutOfMemoryError(RuntimeError):
    """Error of a device that is too small; the name and the message are torch's."""


def main() -> None:
    """Print one line a step, or run out of memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, default="overlap", help="kind of physics")
    parser.add_argument("--model", type=int, default=0, help="seed of the model")
    parser.add_argument("--n_layers", type=int, default=24, help="layers of it")
    parser.add_argument("--sharding", required=True, help="strategy of each layer, joined by commas")
    parser.add_argument("--batch_size", type=int, required=True, help="samples of a device")
    parser.add_argument("--reserved_share", type=float, required=True, help="share of memory for the dense part")
    args = parser.parse_args()
    simulator = Simulator.draw(args.model, n_layers=args.n_layers, family=args.family)
    config = {
        "sharding_strategy": tuple(args.sharding.split(",")),
        "micro_batch_size": args.batch_size,
        "reserved_share": args.reserved_share,
    }
    throughput = simulator.throughput(config)
    if throughput == 0.0:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    rng = np.random.default_rng(crc32(repr(sorted(config.items())).encode()))
    of_launch = float(np.exp(rng.normal(0.0, NOISE)))
    for step in range(1, _STEPS + 1):
        rate = throughput * of_launch * float(np.exp(rng.normal(0.0, NOISE / 4)))
        print(f"step {step} {rate:.3f} samples/s", flush=True)


if __name__ == "__main__":
    main()
