"""A program that only sleeps, in place of a training."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from torchx_cubicml import measure

STEPS = 20


def main() -> None:
    """Sleep, telling steps of about one throughput so that none is ended early, and write when it ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--ends", required=True)
    args = parser.parse_args()
    seconds = args.seconds * (0.9 + 0.2 * (17 * args.batch_size + 31 * args.width) % 10 / 10)
    for _ in range(STEPS):
        time.sleep(seconds / STEPS)
        measure.step(samples=seconds * (1e5 + args.batch_size - args.width))
    with Path(args.ends).open("a") as ends:
        ends.write(f"{time.time()}\n")


if __name__ == "__main__":
    main()
