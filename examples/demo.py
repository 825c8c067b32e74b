"""The product at work on one machine: tune a two-process FSDP training, then launch it again, rewritten from history.

Runs what a user would type, command by command, and prints each. Everything it writes lies in ``.demo``.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".demo"
SPACE = "examples/gpt.toml"
STORE = ".demo/store"
REPORT = ".demo/report.html"
REPEATS = 3
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
    print(f"  torchx run -s local_cwd {shlex.join(TRAINING)}")

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


def run(*command: str, quiet: bool = False) -> None:
    """Run one command in the checkout; a failure ends the demo with the command's own output."""
    print(f"$ {shlex.join(command)}", flush=True)
    done = subprocess.run(command, cwd=ROOT, check=False, text=True, stderr=subprocess.PIPE if quiet else None)
    if done.returncode:
        print(done.stderr or "", file=sys.stderr)
        sys.exit(f"demo stopped: exit status {done.returncode}")


def compare_launches() -> None:
    """Compare the launches that were made outside the tune: the user's own config and the rewritten one."""
    from torchx_cubicml import Origin, TrialStore
    from torchx_cubicml.advisor.noise import repeat_noise
    from torchx_cubicml.cli.base import wide_console
    from torchx_cubicml.cli.tune_display import comparison_table
    from torchx_cubicml.tuner.comparison import Repeats, compare

    trials = sorted(TrialStore(str(ROOT / STORE)), key=lambda trial: trial.started_at)
    objective = "tokens_per_second"
    sides = []
    for origin in (Origin.USER, Origin.REWRITE):
        chosen = [trial for trial in trials if trial.origin is origin and trial.measurement]
        if not chosen:
            print(f"no launch of origin {origin}: the predicted gain was too small to rewrite the command")
            return
        sides.append(Repeats.of(chosen[0].config, chosen, objective=objective))
    comparison = compare(*sides, objective=objective, noise=repeat_noise(trials, objective=objective))
    console = wide_console()
    console.print(comparison_table(comparison))
    console.print(str(comparison), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
