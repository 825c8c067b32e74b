"""Action ``torchx cubicml history repeat``: prints the command that repeats a recorded launch, and launches nothing."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from torchx_cubicml.cli.base import print_json, store_url
from torchx_cubicml.cli.component_command import follow_up, launch_words, typed_command
from torchx_cubicml.cli.history_filters import find_trial
from torchx_cubicml.cli.progress_bar import read_store
from torchx_cubicml.cli.repeat_text import print_command
from torchx_cubicml.errors import LaunchError, RecordError
from torchx_cubicml.records.kept_command import WORDS, command_text
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.trial import short_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.repeat import RepeatedLaunch
    from torchx_cubicml.records.trial import Trial


class _TrialParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"history repeat: {message}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the space file, the scheduler, the trial, and the user's own command."""
    _add_options(parser, default=None)
    text = "trial id, or the beginning of one; then your own launch of its program, as for `torchx run` or torchrun"
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="TRIAL [-- COMPONENT ...]", help=text)


def run(args: argparse.Namespace) -> int:
    """Print the command; exit status 1 if what it starts is known to differ from the recorded launch."""
    from torchx_cubicml.launch.messages import changes_in_job

    trial_id = _read_words(args)
    trial, keys = _read_trial(trial_id, store_url(args), is_json=args.json)
    if not args.command:
        if not trial.command:
            name = printable(short_id(trial.trial_id))
            again = follow_up("history", "repeat", name, store=store_url(args))
            raise RecordError(
                f"trial {name} holds no command: give your own launch of its program, as in "
                f"`{again} --space FILE -- dist.ddp -j 1x2 --script train.py -- ARGS`"
            )
        if args.json:
            print_json({"command": command_text(trial.command)})
        else:
            print_command(trial)
        return 0
    if not args.space:
        raise LaunchError("--space is missing: the space file tells where the recorded values stand in your command")
    repeated, words = _repeated(args, trial, keys)
    in_job = changes_in_job(repeated.launch)
    text = command_text({WORDS: tuple(words)})
    if args.json:
        named = {"differences": list(repeated.differences), "unknown": list(repeated.unknown), "set_in_job": in_job}
        print_json({"command": text, **named})
    else:
        _print(repeated, in_job, trial)
        sys.stdout.write(f"{text}\n")
    return 1 if repeated.differences or in_job else 0


def _add_options(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    parser.add_argument("--space", default=default or "", metavar="FILE", help="your space file (TOML)")
    text = "TorchX scheduler (default: that of the command line of `torchx run`)"
    parser.add_argument("-s", "--scheduler", default=default or "", help=text)
    text = "scheduler options, as for `torchx run`"
    parser.add_argument("-cfg", "--scheduler_args", default=default or "", help=text)


def _read_words(args: argparse.Namespace) -> str:
    """Return the trial; the command, and options between them, are read into ``args``.

    argparse leaves everything behind the first positional argument to the last one.
    """
    words = list(args.words)
    split = words.index("--") if "--" in words else len(words)
    parser = _TrialParser(add_help=False, allow_abbrev=False)
    _add_options(parser, default=argparse.SUPPRESS)
    parser.add_argument("--store", default=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    parser.add_argument("trial_id", metavar="TRIAL")
    found = parser.parse_args(words[:split], namespace=args)
    args.command = words[split + 1 :]
    return str(found.trial_id)


def _read_trial(trial_id: str, url: str, *, is_json: bool) -> tuple[Trial, tuple[str, ...]]:
    from torchx_cubicml.store.digest_key import digest_keys

    trials, warnings = read_store(url, is_json=is_json)
    _say(*warnings)
    return find_trial(trials, trial_id, store=url), digest_keys(url)


def _repeated(args: argparse.Namespace, trial: Trial, keys: Sequence[str]) -> tuple[RepeatedLaunch, list[str]]:
    """Return the repeated launch, and the words that start it, recorded and not rewritten."""
    from torchx_cubicml.launch.repeat import repeated_launch
    from torchx_cubicml.space.toml import load_space

    space, typed = load_space(args.space), typed_command(args)
    repeated = repeated_launch(typed.launch, space, trial, digest_keys=keys)
    # What is repeated must not be rewritten.
    return repeated, launch_words(typed, repeated.launch, args, mode="record", space=args.space, store=store_url(args))


def _print(repeated: RepeatedLaunch, in_job: Sequence[str], trial: Trial) -> None:
    """Print on stderr what differs, what is not known, and what the command does not state."""
    if not (repeated.differences or in_job):
        _say(f"nothing is known to differ from trial {short_id(trial.trial_id)}")
    _say(*(f"differs: {text}" for text in repeated.differences))
    _say(*(f"not compared: {text}" for text in repeated.unknown))
    _say(*(f"the command does not set {text}, as the recorded job did" for text in in_job))


def _say(*lines: str) -> None:
    for line in lines:
        print(f"torchx-cubicml: {printable(line)}", file=sys.stderr)  # noqa: T201 - the command line's own output
