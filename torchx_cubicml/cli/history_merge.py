"""Action ``torchx cubicml history merge``: adds the trials of one store to another, each once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import print_json
from torchx_cubicml.cli.option_choices import add_choice
from torchx_cubicml.cli.progress import progress
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.redaction import mask, printable

if TYPE_CHECKING:
    import argparse

    from torchx_cubicml.store.merge import MergeResult

_MAX_NAMED = 5  # ids that are printed; the rest are counted


def add_trust(parser: argparse.ArgumentParser, *, default: Trust, of: str) -> None:
    """Declare ``--trust``.

    Args:
        parser: of the action.
        default: level without the option.
        of: words for the trials that get the level.
    """
    text, note = f"trust level of {of}", f"default: {default}"
    add_choice(parser, "--trust", Trust, text, note=note, metavar="LEVEL", default=str(default))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two stores, ``--into`` and ``--trust``."""
    parser.add_argument("first", metavar="A", help="store that receives the trials, unless --into names another")
    parser.add_argument("second", metavar="B", help="store whose trials are added; it stays as it is")
    text = "store that receives the trials of both, while A stays as it is"
    parser.add_argument("--into", default=None, metavar="C", help=text)
    add_trust(parser, default=Trust.TEAM, of="the trials of B; those of A keep theirs")


def run(args: argparse.Namespace) -> int:
    """Merge the stores, and print how many trials are new."""
    from torchx_cubicml.store import TrialStore
    from torchx_cubicml.store.merge import merge_into
    from torchx_cubicml.store.presence import check_store, check_target

    first, second, target = (TrialStore(url) for url in (args.first, args.second, args.into or args.first))
    if second.url in {first.url, target.url} or (args.into and target.url == first.url):
        raise StoreError(f"merge takes different stores, got {mask(second.url)} twice")
    for store in (first, second):
        check_store(store.url)
    check_target(target.url)
    sources = [(second, Trust(args.trust))]
    if args.into:
        sources.insert(0, (first, Trust.OWN))
    results = []
    for source, trust in sources:
        with progress("merging events", is_json=args.json) as report:
            results.append((source.url, merge_into(target, source, trust=trust, report=report)))
    for line in (line for _, result in results for line in result.warnings):
        print(f"torchx-cubicml: {line}", file=sys.stderr)  # noqa: T201 - the command line's own output
    if args.json:
        print_json([merge_json(url, result) for url, result in results])
    else:
        for url, result in results:
            say(open_console(), merge_text(url, target.url, result))
    return 0


def merge_json(url: str, result: MergeResult) -> dict[str, object]:
    """Return the result of merging the store at ``url`` as JSON values."""
    return {
        "source": mask(url),
        "new": len(result.new),
        "completed": len(result.completed),
        "known": result.n_known,
        "differing": list(result.differing),
    }


def merge_text(source: str, target: str, result: MergeResult) -> str:
    """Return the result of one merge in a sentence."""
    counts = [f"{len(result.new)} trials new", f"{result.n_known} known"]
    if result.completed:
        counts.insert(1, f"{len(result.completed)} completed")
    text = f"merged {mask(source)} into {mask(target)}: {', '.join(counts)}"
    if not result.differing:
        return text
    named = printable(", ".join(result.differing[:_MAX_NAMED]))
    more = f" and {len(result.differing) - _MAX_NAMED} more" if len(result.differing) > _MAX_NAMED else ""
    return f"{text}; {len(result.differing)} with other events stay as the target has them: {named}{more}"
