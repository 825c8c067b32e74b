"""Measures whether generated trainings that go on from a checkpoint stay the same trainings.

    python benchmarks/resumed.py [--count 60] [--seed 1] [--kinds plain dcp] [--output benchmarks/results/resumed.txt]

Kinds: a loader per rank whose state one file holds (plain), a file per rank, torch.distributed.checkpoint (dcp), the HF
Trainer, and Lightning. The last two need an interpreter with these libraries, which ``make test-integrations`` makes.
Drawn are the names of flags and of keys in a config file, where the output folder stands, how the author asks to go on
(a switch, a value, a key, a variable, or the script looks), whether the first command already asks, the batch as typed,
the order of samples, whether the loader skips micro batches or samples, and whether the script refuses another batch.

A training is launched whole in ``record`` mode, into a store of its own. From this record, a second store gets launches
as typed and launches of another micro batch with the same global batch, which are three times as fast. With that store
the training is launched until it is killed after a checkpoint or has made its first steps (as typed in ``record`` mode,
rewritten, or without us). Then a third micro batch becomes known, which is three times as fast again, and the training
is launched again with the same command in ``rewrite`` mode.

Equal: the samples of each optimizer step, without the steps that the first launch made after its last checkpoint, are
those of the whole launch. Layout: the second launch runs the micro batch and accumulation of the first. Failed: second
launches whose first attempt failed, or that failed altogether. Fresh: the first command is rewritten in an empty folder
after all that, by a dry run. Banned: those that are not, although they were before. The speed that a launch is measured
with is replaced by that of its layout, so that a busy machine makes no difference. Checks of the judge: whole launches
equal launches without us, fresh ones run the layout that the dry run says, first ones are rewritten or run as typed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lib.resumed.drawn import PER_RANK, trainings
from lib.resumed.launches import Case, add_history, again_words, first_words, settle_speeds, speeds
from lib.resumed.scripts import KINDS

from torchx_cubicml.records.trial import SECOND_ATTEMPT_SUFFIX, State
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lib.resumed.drawn import Training
    from lib.resumed.launches import Launched

_ROOT = Path(__file__).resolve().parent.parent
_INTEGRATIONS = _ROOT / ".venv-integrations" / "bin" / "python"
_LIBRARY = {"trainer": "transformers", "lightning": "lightning"}
_FAILURES = frozenset(State) - {State.PLANNED, State.RUNNING, State.COMPLETED, State.STOPPED_EARLY}
_EVERY = 6  # one training in so many is also launched without us, and in an empty folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one training.

    Args:
        training: as drawn.
        equal: whether its samples are those of the whole training.
        layout: whether the second launch kept the first one's layout.
        failed: whether a second launch failed.
        fresh: whether the command is rewritten in an empty folder.
        banned: whether it no longer is.
        checks: checks of the judge -> whether they hold.
        note: what went wrong, in words.
    """

    training: Training
    equal: bool = False
    layout: bool = False
    failed: bool = False
    fresh: bool = False
    banned: bool = False
    checks: dict[str, bool]
    note: str = ""

    @property
    def holds(self) -> bool:
        """Return whether all is as promised."""
        return self.equal and self.layout and not self.failed and self.fresh and not self.banned


def outcome(training: Training, *, folder: Path, pythons: dict[str, Path]) -> Outcome:
    """Launch one training and judge it; a defect of the judge is an outcome, too."""
    case = Case(training, folder / f"training-{training.number}", pythons[training.kind])
    try:
        return _judged(case)
    except Exception as error:  # noqa: BLE001 - one training does not end the others
        return Outcome(training=training, checks={"launched": False}, note=f"{type(error).__name__}: {error}")
    finally:
        print(".", end="", file=sys.stderr, flush=True)


def _judged(case: Case) -> Outcome:
    training, folder = case.training, case.folder
    steps, asked = first_words(training)
    whole = case.launch("whole", "record", folder / "recorded", at="whole", steps=training.steps, goes_on_from=asked)
    if whole.status:
        raise RuntimeError(f"the whole launch ended with {whole.status}: {whole.text[-600:]}")
    store, later = folder / "store", folder / "later"
    typed, fast, faster = speeds(training)
    add_history(training, folder / "recorded", store, (typed, fast))
    first = case.launch("first", training.first_mode, store, at="run", steps=steps, goes_on_from=asked)
    add_history(training, folder / "recorded", store, (faster,))
    settle_speeds(training, store)
    known = {trial.trial_id for trial in TrialStore(str(store))}
    steps, goes_on_from = again_words(training, first, folder / "run")
    second = case.launch("second", "rewrite", store, at="run", steps=steps, goes_on_from=goes_on_from)
    new = [trial for trial in TrialStore(str(store)) if trial.trial_id not in known]
    failed = bool(second.status) or any(
        trial.trial_id.endswith(SECOND_ATTEMPT_SUFFIX) or trial.state in _FAILURES for trial in new
    )
    settle_speeds(training, store)
    rows = case.shows_rewrite(store, at="fresh")
    if not rows:
        add_history(training, folder / "recorded", later, (typed, fast, faster))
    was = rows or case.shows_rewrite(later, at="fresh-before")
    equal, note = compared(training, whole, first, second)
    return Outcome(
        training=training,
        equal=equal,
        layout=first.layouts == second.layouts and len(second.layouts) == 1,
        failed=failed,
        fresh=bool(rows),
        banned=bool(was) and not rows,
        checks=_checks(case, whole, first, is_fresh=bool(rows)),
        note=f"{note}; layouts {_layouts(first)}, then {_layouts(second)}",
    )


def compared(training: Training, whole: Launched, first: Launched, second: Launched) -> tuple[bool, str]:
    """Return whether two launches together saw the samples of the whole one in each step, and a sentence about it."""
    if not first.checkpoints or not second.samples:
        return False, f"first launch saved {len(first.checkpoints)}, second launch made {len(second.samples)} steps"
    begin = min(second.samples)
    seen = {step: ids for step, ids in first.samples.items() if step < begin} | second.samples
    wrong = sorted(step for step in {*seen, *whole.samples} if seen.get(step) != whole.samples.get(step))
    skipped = {each for ids in whole.samples.values() for each in ids} - {each for ids in seen.values() for each in ids}
    if begin != training.last_checkpoint:
        return False, f"goes on at step {begin}, not at {training.last_checkpoint}"
    if wrong:
        return (
            False,
            f"{len(wrong)} steps with other samples from step {wrong[0]} on, {len(skipped)} samples never seen",
        )
    return True, "samples equal"


def _checks(case: Case, whole: Launched, first: Launched, *, is_fresh: bool) -> dict[str, bool]:
    """Return what is checked of the judge itself."""
    training = case.training
    steps, asked = first_words(training)
    typed, fast, faster = speeds(training)
    wanted = fast if training.first_mode == "rewrite" else typed
    counts = {len(set(ids)) for ids in whole.samples.values()}
    checks = {
        f"first launches by mode, {training.first_mode}": first.layouts == {wanted},
        "whole launches of the right steps and samples": counts == {PER_RANK * training.processes}
        and sorted(whole.samples) == list(range(training.steps)),
    }
    if training.number % _EVERY:
        return checks
    alone = case.launch(
        "alone", "without us", case.folder / "none", at="alone", steps=training.steps, goes_on_from=asked
    )
    checks["whole launches as without us"] = alone.samples == whole.samples
    if is_fresh:
        fresh = case.launch("fresh", "rewrite", case.folder / "store", at="fresh", steps=steps, goes_on_from=asked)
        checks["fresh launches in the layout that the dry run says"] = fresh.layouts == {faster} and not fresh.status
    return checks


def _layouts(launched: Launched) -> str:
    return ", ".join(f"{batch} x {accumulation}" for batch, accumulation in sorted(launched.layouts)) or "none"


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line per kind, and one for all."""
    lines = [f"{'kind':10}{'trainings':>10}{'equal':>10}{'layout':>10}{'failed':>10}{'banned':>10}{'fresh':>10}"]
    for kind in (*dict.fromkeys(each.training.kind for each in outcomes), "all"):
        chosen = [each for each in outcomes if kind in {each.training.kind, "all"}]
        counts = [
            sum(getattr(each, name) for each in chosen) for name in ("equal", "layout", "failed", "banned", "fresh")
        ]
        lines.append(f"{kind:10}{len(chosen):10}" + "".join(f"{count:10}" for count in counts))
    lines.append("")
    for name in sorted({name for each in outcomes for name in each.checks}):
        held = [each.checks[name] for each in outcomes if name in each.checks]
        lines.append(f"{name}: {sum(held)} of {len(held)}")
    return lines


def pythons_of(kinds: Sequence[str], python: Path) -> dict[str, Path]:
    """Return the interpreter of each kind whose libraries are there; ``python`` serves those that the others lack."""
    found = {}
    for kind in kinds:
        library = _LIBRARY.get(kind, "torch")
        for each in dict.fromkeys((Path(sys.executable), python)):
            words = [
                str(each),
                "-c",
                f"import importlib.util as u, sys; sys.exit(not (u.find_spec({library!r}) and 1))",
            ]
            if each.exists() and not subprocess.run(words, check=False).returncode:
                found[kind] = each
                break
    return found


def main() -> int:
    """Launch, print, and write the result where asked; exit status 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="trainings (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the trainings that are launched")
    text = "interpreter with transformers, accelerate, lightning and this package (default: that of test-integrations)"
    parser.add_argument("--python", type=Path, default=_INTEGRATIONS, help=text)
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time (default: 2)")
    parser.add_argument("--folder", type=Path, help="keeps the launches (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    pythons = pythons_of(arguments.kinds, arguments.python.absolute())
    drawn = trainings(arguments.count, arguments.seed, tuple(arguments.kinds))
    drawn = [
        each for each in drawn if each.kind in pythons and each.number in (arguments.only or range(arguments.count))
    ]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.workers) as pool:
        judge = partial(outcome, folder=(arguments.folder or Path(temporary)).absolute(), pythons=pythons)
        outcomes = list(pool.map(judge, drawn))
    print(file=sys.stderr)
    broken = [each for each in outcomes if not (each.holds and all(each.checks.values()))]
    left_out = [kind for kind in arguments.kinds if kind not in pythons]
    lines = [f"{len(outcomes)} trainings, seed {arguments.seed}", "", *table(outcomes), ""]
    lines += [f"left out, as their libraries are missing: {', '.join(left_out)}"] if left_out else []
    lines += [f"{each.training.text}\n    {each.note}{_marks(each)}" for each in broken]
    lines.append(f"all hold: {'no' if broken or not outcomes else 'yes'}")
    lines.append(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end")
    text = "\n".join(lines)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(f"{text}\n")
    return 1 if broken or not outcomes else 0


def _marks(each: Outcome) -> str:
    marks = {"failed": each.failed, "banned": each.banned, "fresh as typed": not each.fresh}
    marks |= {f"not so: {name}": not held for name, held in each.checks.items()}
    return "".join(f"; {name}" for name, holds in marks.items() if holds)


if __name__ == "__main__":
    sys.exit(main())
