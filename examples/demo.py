"""The product at work on one machine: tune a two-process FSDP training, then launch it again, rewritten from history.

Runs what a user would type, command by command, and prints each. Everything it writes lies in ``.demo``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".demo"
SPACE = "examples/gpt.toml"
STORE = ".demo/store"
REPORT = ".demo/report.html"
REPEATS = 3
WIDTH = 100
# torchrun warns of OMP_NUM_THREADS where it is not set.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TRAINING = shlex.split(
    "dist.ddp -j 1x2 --script examples/train_gpt.py -- --n_layer 4 --n_embd 128 --block_size 64 --steps 12 "
    "--batch_size 2 --accumulate 8 --sharding FULL_SHARD --activation_checkpointing full --out_dir .demo/out"
)


def main() -> int:
    """Tune, launch, compare; the exit status is 1 where a launch failed."""
    started = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    say("Your command:")
    show(["torchx", "run", "-s", "local_cwd", *TRAINING])

    say("1. Tune it. Each launch is a real two-process training, recorded in a local store.")
    run("torchx", "cubicml", "tune", "--space", SPACE, "--store", STORE, "--budget", "18 launches", "--", *TRAINING)

    say("2. Put `cubicml` in front: it rewrites the command. Your own command runs in turn, for comparison.")
    cubicml = (
        "torchx",
        "--log_level",
        "WARNING",
        "run",
        "-s",
        "local_cwd",
        "cubicml",
        "--space",
        SPACE,
        "--store",
        STORE,
    )
    for number in range(REPEATS):
        run(*cubicml, "--mode", "record", *TRAINING, quiet=True)
        run(*cubicml, *TRAINING, quiet=number > 0)

    say(f"3. Throughput of the {2 * REPEATS} launches after the tune:")
    compare_launches()
    say(f"4. All trials are in {STORE}. Write them as a page:")
    run("torchx", "cubicml", "report", "--store", STORE, "--space", SPACE, "--out", REPORT)
    print(f"{time.monotonic() - started:.0f} s")
    say(f"Open the report in a browser: file://{ROOT / REPORT}")
    return 0


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}", flush=True)


def show(command: Sequence[str], first: str = "  ") -> None:
    """Print a command as one would type it, over several lines where it is long."""
    from torchx_cubicml.cli.terminal import command_lines

    lines = command_lines(command, WIDTH)
    print("\n".join([f"{first}{lines[0].strip()}", *lines[1:]]), flush=True)


def run(*command: str, quiet: bool = False) -> None:
    """Run one command in the checkout; a failure ends the demo with the command's own output."""
    show(command, first="$ ")
    stderr = subprocess.PIPE if quiet else None
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False, text=True, stderr=stderr)
    if done.returncode:
        print(done.stderr or "", file=sys.stderr)
        sys.exit(f"demo stopped: exit status {done.returncode}")


def compare_launches() -> None:
    """Compare the launches that were made outside the tune: the user's own config and the rewritten one."""
    from torchx_cubicml import Origin, TrialStore
    from torchx_cubicml.advisor.comparison import compared
    from torchx_cubicml.cli import terminal
    from torchx_cubicml.cli.tune_display import comparison_table

    trials = sorted(TrialStore(str(ROOT / STORE)), key=lambda trial: trial.started_at)
    objective = "tokens_per_second"
    sides = []
    for origin in (Origin.USER, Origin.REWRITE):
        chosen = [trial for trial in trials if trial.origin is origin and trial.measurement]
        if not chosen:
            print(f"no launch of origin {origin}: the predicted gain was too small to rewrite the command")
            return
        sides.append(chosen)
    own, rewritten = (chosen[0].config for chosen in sides)
    comparison = compared(own, rewritten, [*sides[0], *sides[1]], objective=objective)
    if comparison is None:
        return
    console = terminal.open_console()
    console.print(comparison_table(comparison))
    terminal.say(console, str(comparison))


if __name__ == "__main__":
    sys.exit(main())
