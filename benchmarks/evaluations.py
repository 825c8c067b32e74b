"""Compares the recorded throughput of generated loops that evaluate and save with what they know of their own time.

    python benchmarks/evaluations.py [--count 200] [--seed 0] [--output benchmarks/results/evaluations.txt]

Drawn are the loop (one's own, Lightning's, the HF Trainer's), the batch, steps and epochs, when it evaluates and how
(``no_grad`` or ``inference_mode`` around all or each batch, a decorated function, evaluation mode alone), whether it
saves, and stalls: opening either loader, before and behind an evaluation, at the end of an epoch. The truth is the
samples of all epochs but the first, over their time without evaluating and saving, by the loop's own clock (see
``lib/evaluations/loop.py``). Lightning and the HF Trainer need the interpreter of ``make test-integrations``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchx_cubicml.settings import child_environment
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).resolve().parent.parent
_INTEGRATIONS = _ROOT / ".venv-integrations" / "bin" / "python"
_LOOP = Path(__file__).resolve().parent / "lib" / "evaluations" / "loop.py"
_KINDS = ("plain", "plain", "lightning", "trainer")
_HOW = ("no_grad", "inference", "decorated", "each", "mode")
_WITHIN, _SHARE = 0.05, 0.975
_TIMEOUT_S = 300.0


class Verdict(NamedTuple):
    """Outcome of one loop: its kind, by which part the record is above the truth, and what it was."""

    kind: str
    off: float | None
    words: str

    @property
    def is_right(self) -> bool:
        """True if the record is within 5 % of the truth."""
        return self.off is not None and abs(self.off) <= _WITHIN


def drawn(number: int, seed: int, kinds: tuple[str, ...] = _KINDS) -> dict[str, object]:
    """Return the options of one loop; times in seconds."""
    rng = np.random.default_rng([seed, number])
    kind = kinds[number % len(kinds)]

    def maybe(share: float, low: float, high: float) -> float:
        value = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        return round(value, 4) if rng.random() < share else 0.0

    is_plain, evaluates = kind == "plain", bool(rng.random() < 0.85)
    return {
        "kind": kind,
        "batch": int(rng.choice([1, 2, 4, 8])),
        "steps": int(rng.integers(12, 41)),
        "epochs": int(rng.integers(4, 7)),
        "evaluation": int(rng.integers(1, 9)) if evaluates else 0,
        "every": int(rng.integers(4, 12)) if is_plain and evaluates and rng.random() < 0.3 else 0,
        "how": str(rng.choice(_HOW)),
        "trains_first": bool(rng.random() < 0.5),
        "forward": maybe(1.0, 0.003, 0.02),
        "forward_evaluating": maybe(1.0, 0.003, 0.03),
        "update": maybe(0.5, 0.001, 0.01),
        "fetch": maybe(0.4, 0.001, 0.01),
        "metric": maybe(0.5, 0.002, 0.03),
        "opens": maybe(0.5, 0.05, 0.8),
        "opens_evaluating": maybe(0.4, 0.02, 0.4),
        "before": maybe(0.2, 0.02, 0.3),
        "behind": maybe(0.4, 0.05, 0.6),
        "upload": maybe(0.3, 0.05, 0.6) if kind != "trainer" else 0.0,
        "save": maybe(0.3, 0.02, 0.3) if is_plain else 0.0,
        "nothing": 0.0,
    }


def judged(options: dict[str, object], *, number: int, folder: Path, pythons: dict[str, Path]) -> Verdict:
    """Launch one loop, and compare its record with its own clock."""
    at = folder / f"loop-{number}"
    at.mkdir(parents=True)
    kind, out, store = str(options["kind"]), at / "out.json", at / "store"
    python = pythons[kind]
    shown = {name: value for name, value in options.items() if value not in (0, 0.0)}
    words = f"{number}: {json.dumps(shown)}"
    command = [str(python.with_name("cubicrun")), "--cubicml-store", str(store), "--", str(python), str(_LOOP)]
    done = subprocess.run(
        [*command, json.dumps(options), str(out)],
        cwd=at,
        env=child_environment({"OMP_NUM_THREADS": "1", "TORCHX_CUBICML_CACHE": "off"}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    print(".", end="", file=sys.stderr, flush=True)
    trials = list(TrialStore(str(store))) if store.exists() else []
    measured = trials[0].measurement if len(trials) == 1 else None
    if done.returncode or measured is None or measured.samples_per_second is None:
        return Verdict(kind, None, f"{words}\n    {done.stderr[-300:]}")
    epochs = json.loads(out.read_text())[1:]
    truth = sum(samples for *_, samples in epochs) / sum(end - began for began, end, _ in epochs)
    return Verdict(kind, measured.samples_per_second / truth - 1, words)


def table(verdicts: Sequence[Verdict], seed: int) -> list[str]:
    """Return one line per kind, one for all, and the loops whose record is wrong."""
    lines = [f"{len(verdicts)} loops, seed {seed}; recorded throughput beside the loop's own clock", ""]
    lines.append(f"{'kind':10}{'loops':>8}{'recorded':>10}{'within 5 %':>12}{'median off':>12}{'worst':>8}")
    for kind in (*dict.fromkeys(each.kind for each in verdicts), "all"):
        chosen = [each for each in verdicts if kind in {each.kind, "all"}]
        off = sorted(abs(each.off) for each in chosen if each.off is not None) or [float("nan")]
        right = sum(each.is_right for each in chosen)
        row = f"{kind:10}{len(chosen):8}{sum(each.off is not None for each in chosen):10}{right:12}"
        lines.append(f"{row}{off[len(off) // 2]:12.1%}{off[-1]:8.1%}")
    lines += ["", f"within 5 %: {_share_right(verdicts):.1%}, wanted {_SHARE:.1%}", ""]
    lines += [
        f"{'none' if each.off is None else f'{each.off:+.1%}'} {each.words}" for each in verdicts if not each.is_right
    ]
    return lines


def _share_right(verdicts: Sequence[Verdict]) -> float:
    return sum(each.is_right for each in verdicts) / max(len(verdicts), 1)


def main() -> int:
    """Launch, print, and write the result where asked; exit status 1 where too many records are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="loops (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=sorted({*_KINDS}), default=list(_KINDS))
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the loops that are launched")
    parser.add_argument(
        "--python", type=Path, default=_INTEGRATIONS, help="interpreter with transformers and lightning"
    )
    parser.add_argument("--workers", type=int, default=2, help="loops at a time (default: 2)")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    own = Path(sys.executable)
    pythons = {kind: own if kind == "plain" else arguments.python.absolute() for kind in arguments.kinds}
    numbers = arguments.only or range(arguments.count)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.workers) as pool:
        judge = partial(judged, folder=Path(temporary), pythons=pythons)
        futures = [
            pool.submit(judge, drawn(number, arguments.seed, tuple(arguments.kinds)), number=number)
            for number in numbers
        ]
        verdicts = [future.result() for future in futures]
    print(file=sys.stderr)
    lines = table(verdicts, arguments.seed)
    lines.append(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end")
    print("\n".join(lines))
    if arguments.output is not None:
        arguments.output.write_text("\n".join(lines) + "\n")
    return int(_share_right(verdicts) < _SHARE)


if __name__ == "__main__":
    sys.exit(main())
