"""Measures how often a launch is taken for another job although its work is known, and the reverse.

python benchmarks/changed_work.py [--histories 600] [--output benchmarks/results/changed_work.txt]

A history is 60 launches of one script, of which the first and the second half are counted apart. Its work is a language
model, whose sequence length and parameters the recorder observes, or a vision model, of which it observes the
parameters only. Before each launch its author may

- change settings of a known harmless kind: seed, run name, folder, learning rate, number of steps (7 launches in 10);
- change a setting that is harmless, but in no table: a path of data, a tokenizer, a clipping norm... (6 in 100);
- edit the script without changing its work (12 in 100): a third of the edits are comments or printed lines, a third
  are constants of a harmless kind, a third are code;
- edit the script so that its work changes (15 in 1,000): half of the edits are constants, half are code;
- change a flag that changes the work: sequence length or image size, depth, kind of attention (4 in 100), half of the
  times back to a value that it had before.

Speeds and memory follow the work and the config, with noise of 5 % and one launch in twenty slowed down to 50 to 95 %
by its node. A launch runs the config as typed, or one of three others; one that runs as typed for its settings runs the
config as typed, too. Nothing is declared but the batch size.

Known: launches whose work an earlier launch had. Lost: share of them that run as typed although they could have been
rewritten rightly, with the upper end of its 95 % interval (errors clustered by history). By setting, by code: launches
whose work no earlier launch had, because of a setting or a constant, or of an edit of the code; after such an edit, a
launch is rewritten if the last edit did no harm. Prevented: share of them that run as typed, or have no launch of other
work to learn from. Foreign: share of rewritable known launches that learn from a launch of other work, too. Forgotten:
share of the launches of the same work that are left out. The second table is the rule without settings of the command:
parameter count and device of the latest launch alone.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from torchx_cubicml.history.history import History
from torchx_cubicml.history.present_command import PresentCommand
from torchx_cubicml.history.program_parts import program_parts
from torchx_cubicml.history.same_work import with_same_work
from torchx_cubicml.records.arguments import digested_arguments, text_digest
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.records.workload import comparable_trials
from torchx_cubicml.space.toml import parse_space

N_LAUNCHES, FIRST_ASKED, HALVES = 60, 3, (30, 60)
KEY = "5eed" * 8
TYPED = 2  # micro batch of the command as typed
WORKLOAD = {"program": "train.py", "world_size": 8}
SPACE = parse_space(
    '[parameters.micro_batch_size]\nchoices = [1, 2, 4, 8]\nflag = "--batch_size"\nchanges_training = true\n',
    where="space",
)
SIZES = {"lm": ("--seq_len", (512, 1024, 2048, 4096)), "vision": ("--image_size", (160, 224, 288, 384))}
RULES = {
    "words": "by settings of the command and what was observed",
    "sizes": "by parameter count and device of the latest launch",
}
HARMLESS = ("--seed", "--run_name", "--output_dir", "--lr", "--max_steps")
UNKNOWN = ("--data_path", "--tokenizer", "--clip", "--augment", "--mixing", "--prompt")


@dataclass
class Author:
    """Author of one script, who changes the command and the script between launches."""

    kind: str
    rng: np.random.Generator
    words: dict[str, str] = field(default_factory=dict)
    code: int = 0
    comments: int = 0
    constants: dict[str, str] = field(default_factory=dict)
    is_new_code: bool = False
    work: dict[str, float] = field(default_factory=dict)
    earlier: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        flag, sizes = SIZES[self.kind]
        self.words = {flag: str(sizes[1]), "--depth": "12", "--attn": "flash", "--data_path": "/data/0"}
        self.work = {"edit": 1.0}

    def change(self) -> None:
        """Change the command or the script before the next launch."""
        rng = self.rng
        if rng.random() < 0.7:
            self.words[str(rng.choice(HARMLESS))] = str(rng.integers(10**6))
        if rng.random() < 0.06:
            self.words[str(rng.choice(UNKNOWN))] = f"text {rng.integers(10**6)}"
        self.is_new_code = False
        if rng.random() < 0.12:
            kind = rng.choice(["comment", "constant", "code"])
            self.comments += kind == "comment"
            self.code += kind == "code"
            if kind == "constant":
                self.constants[str(rng.choice(["seed", "learning_rate", "log_interval"]))] = str(rng.integers(10**6))
        if rng.random() < 0.015:
            self.work["edit"] *= float(rng.choice([0.6, 1.5, 2.0]))
            self.is_new_code = bool(rng.random() < 0.5)
            self.code += self.is_new_code
            if not self.is_new_code:
                self.constants["d_model"] = str(rng.integers(10**6))
        if rng.random() < 0.04:
            flag, sizes = SIZES[self.kind]
            choices = {flag: sizes, "--depth": (6, 12, 24), "--attn": ("flash", "math")}
            name = str(rng.choice(list(choices)))
            self.earlier.append((name, self.words[name]))
            back = rng.random() < 0.5
            name, value = (
                self.earlier[rng.integers(len(self.earlier))] if back else (name, str(rng.choice(choices[name])))
            )
            self.words[name] = value

    def identity(self) -> tuple[object, ...]:
        """Return what decides the work of a step."""
        return (self.work["edit"], *(self.words[name] for name in (SIZES[self.kind][0], "--depth", "--attn")))

    def launch(self, number: int, *, is_kept: bool) -> Trial:
        """Return the record of the next launch.

        Args:
            number: of the launch in its history.
            is_kept: whether it runs as typed for its settings.
        """
        rng, size = self.rng, float(self.words[SIZES[self.kind][0]])
        depth, is_flash = float(self.words["--depth"]), self.words["--attn"] == "flash"
        batch = int(rng.choice([TYPED, TYPED, 1, 4, 8]))
        batch = TYPED if is_kept else batch
        base = SIZES[self.kind][1][1]
        cost = (size / base) ** (1.15 if self.kind == "lm" else 2.0) * depth / 12 * (1.0 if is_flash else 1.4)
        cost *= self.work["edit"]
        slowed = rng.uniform(0.5, 0.95) if rng.random() < 0.05 else 1.0
        speed = 100.0 * batch**0.3 / cost * slowed * math.exp(0.05 * rng.standard_normal())
        memory = (4.0 + 2.0 * batch * cost) * math.exp(0.005 * rng.standard_normal())
        observed = {"n_params": int(1e7 * depth * self.work["edit"] ** 0.37), "device": "NVIDIA A100"}
        if self.kind == "lm":
            observed["seq_len"] = int(size)
        fits = memory < 40.0
        return Trial(
            trial_id=f"t{number:04}",
            workload=WORKLOAD,
            config={"micro_batch_size": batch},
            state=State.COMPLETED if fits else State.OUT_OF_MEMORY,
            observed=observed,
            measurement=Measurement(samples_per_second=speed, peak_memory_gib=memory) if fits else None,
            arguments=digested_arguments(self.arguments(), KEY),
            digests={name: text_digest(text, KEY) for name, text in self.texts().items()},
            started_at=f"2026-01-{1 + number // 24:02}T{number % 24:02}:00:00+00:00",
            ended_at=f"2026-01-{1 + number // 24:02}T{number % 24:02}:30:00+00:00",
        )

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of the command."""
        return tuple(word for pair in self.words.items() for word in pair)

    def texts(self) -> dict[str, str]:
        """Return the parts of the script."""
        constants = "".join(f"{name} = {value}\n" for name, value in self.constants.items())
        text = f"# comment {self.comments}\n{constants}print({self.comments})\ntrain({self.code})\n"
        return {f"program:{name}" if name else "program": part for name, part in program_parts(text).items()}

    def command(self) -> PresentCommand:
        """Return the command as it is compared."""
        return PresentCommand(arguments=self.arguments(), texts=self.texts())


@dataclass
class Count:
    """Counts of one history under one rule."""

    known: int = 0
    lost: int = 0
    by_words: int = 0
    prevented_by_words: int = 0
    by_code: int = 0
    prevented_by_code: int = 0
    rewritable: int = 0
    foreign: int = 0
    same: int = 0
    forgotten: int = 0


def asked(rule: str, trials: list[Trial], command: PresentCommand) -> tuple[bool, list[Trial]]:
    """Return whether the launch runs as typed for its settings, and the trials that it learns from."""
    if rule == "words":
        space = replace(SPACE, objective="samples_per_second")
        facts = {"workload": WORKLOAD, "current": {}, "command": command, "keys": (KEY,)}
        found = with_same_work(History(space=space, trials=trials, **facts))
        return bool(found.unseen), comparable_trials(found.trials, WORKLOAD)[0]
    return False, comparable_trials(trials, WORKLOAD)[0]


def history(seed: int, kind: str) -> dict[str, Count]:
    """Return the counts of one history under each rule."""
    author = Author(kind, np.random.default_rng([seed, len(kind)]))
    trials: list[Trial] = []
    works: dict[str, tuple[object, ...]] = {}
    counts = {f"{rule} {half}": Count() for rule in RULES for half in HALVES}
    for number in range(N_LAUNCHES):
        author.change()
        own = author.identity()
        same = {name for name, work in works.items() if work == own}
        kept = dict.fromkeys(RULES, False)
        for rule in RULES if number >= FIRST_ASKED else ():
            count = counts[f"{rule} {next(half for half in HALVES if number < half)}"]
            is_kept, used = asked(rule, trials, author.command())
            kept[rule] = is_kept
            names = {trial.trial_id for trial in used}
            if not same:
                cause = "by_code" if author.is_new_code else "by_words"
                setattr(count, cause, getattr(count, cause) + 1)
                is_prevented = is_kept or not names & {name for name, work in works.items() if work != own}
                setattr(count, f"prevented_{cause}", getattr(count, f"prevented_{cause}") + is_prevented)
                continue
            count.known += 1
            count.lost += is_kept
            if not is_kept:
                count.rewritable += 1
                count.foreign += bool(names - same)
                count.same += len(same)
                count.forgotten += len(same - names)
        trial = author.launch(number, is_kept=kept["words"])
        trials.append(trial)
        works[trial.trial_id] = own
    return counts


def share(counts: list[Count], part: str, whole: str) -> tuple[float, float]:
    """Return a share of pooled counts, and its standard error clustered by history."""
    parts, wholes = (np.array([getattr(count, name) for count in counts], float) for name in (part, whole))
    pooled = parts.sum() / max(wholes.sum(), 1.0)
    return pooled, math.sqrt(((parts - pooled * wholes) ** 2).sum()) / max(wholes.sum(), 1.0)


def table(found: dict[str, list[dict[str, Count]]], rule: str) -> list[str]:
    """Return the lines of one table."""
    heads = (
        "work",
        "known",
        "lost",
        "(up to)",
        "by setting",
        "prevented",
        "by code",
        "prevented",
        "foreign",
        "forgotten",
    )
    lines = ["".join(f"{head:>11}" for head in heads)]
    every = [count for counts in found.values() for count in counts]
    for name, counts in [*found.items(), ("all", every)]:
        of_rule = [count[rule] for count in counts]
        lost, error = share(of_rule, "lost", "known")
        cells = [str(sum(count.known for count in of_rule)), f"{lost:.1%}", f"{lost + 1.64 * error:.1%}"]
        for cause in ("by_words", "by_code"):
            cells += [str(sum(getattr(count, cause) for count in of_rule))]
            cells += [f"{share(of_rule, f'prevented_{cause}', cause)[0]:.1%}"]
        cells += [f"{share(of_rule, *pair)[0]:.1%}" for pair in (("foreign", "rewritable"), ("forgotten", "same"))]
        lines.append("".join(f"{cell:>11}" for cell in (name, *cells)))
    return lines


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=600)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    kinds = tuple(SIZES)
    found = {
        kind: [history(seed, kind) for seed in range(args.first_seed, args.first_seed + args.histories // len(kinds))]
        for kind in kinds
    }
    lines = [f"{args.histories} histories of {N_LAUNCHES} launches, asked from the {FIRST_ASKED + 1}th on", ""]
    for rule, words in RULES.items():
        for half in HALVES:
            lines += [f"{words}, launches up to {half}", *table(found, f"{rule} {half}"), ""]
    text = "\n".join(lines)
    print(text, end="")
    if args.output:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
