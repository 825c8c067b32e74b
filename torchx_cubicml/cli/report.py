"""Sub-command ``torchx cubicml report``: writes a store as one HTML page that needs no network."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import add_store, store_url
from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.records.redaction import mask, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.report.document import Chapter
    from torchx_cubicml.space import SearchSpace

_MOST_ON_PAGE = 20  # workloads, those of most launches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the store, the space file, the filter and the file to write."""
    add_store(parser)
    text = "space file (TOML), for its objective, statistic and prices (default: what most trials were measured in)"
    parser.add_argument("--space", default="", metavar="FILE", help=text)
    text = "only workloads whose program or facts contain TEXT, such as gpt.py or world_size=8"
    parser.add_argument("--workload", default="", metavar="TEXT", help=text)
    text = "trial whose config the breakdown of time and memory compares first (default: the best but one)"
    parser.add_argument("--config", default="", metavar="TRIAL_ID", help=text)
    parser.add_argument("--out", default="report.html", metavar="FILE", help="file to write (default: report.html)")


def run(args: argparse.Namespace) -> int:
    """Write the page, and print how to open it."""
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.report.document import document
    from torchx_cubicml.report.sections.figures import Colours, missing_renderer
    from torchx_cubicml.store import absolute_url
    from torchx_cubicml.store.predictor_choice import latest_choice
    from torchx_cubicml.store.presence import read_recorded
    from torchx_cubicml.tuner.results import read_results

    path, url = Path(args.out), absolute_url(store_url(args))
    if path.suffix.lower() not in {".html", ".htm"}:
        raise LaunchError(f"--out must name a file that ends in .html, got {args.out!r:.200}")
    space = _space(args.space)
    trials, warnings = read_recorded(url)
    _check_config(args.config, trials, where=mask(url))
    groups = _chosen(_terms(trials, space), args.workload, where=mask(url))
    notes, colours, missing = read_results(url), Colours(), missing_renderer()
    shown, predictor = groups[:_MOST_ON_PAGE], latest_choice(url)
    chapters = [
        _chapter(
            WorkloadView(
                trials=group,
                objective=_objective(group, space),
                space=space,
                notes=notes,
                store=url,
                recorded=trials,
                colours=None if missing else colours,
                place=place,
                predictor=predictor,
                chosen=args.config,
            )
        )
        for place, group in enumerate(shown, start=1)
    ]
    left_out = len(groups) - len(shown)
    many = f"{left_out} workloads with fewer launches are left out: choose some with --workload." if left_out else ""
    text = document(
        chapters,
        title=f"Launches in {printable(mask(url))}",
        about=_about(sum(map(len, groups)), len(groups)),
        notes=[printable(mask(note)) for note in (*warnings, many, missing) if note],
        css=colours.css(),
    )
    _write(path, text)
    print(f"torchx-cubicml: wrote {path}: open it in a browser", file=sys.stderr)  # noqa: T201 - the command's own output
    return 0


def _space(file: str) -> SearchSpace | None:
    from torchx_cubicml.space.toml import load_space

    return load_space(file) if file else None


def _check_config(trial_id: str, trials: Sequence[Trial], *, where: str) -> None:
    if trial_id and not any(trial.trial_id == trial_id and trial.config for trial in trials):
        raise StoreError(
            f"--config {trial_id!r:.100}: no trial of store {where} with a config has this id; `torchx cubicml history "
            "list` shows the ids"
        )


def _terms(trials: Sequence[Trial], space: SearchSpace | None) -> list[Trial]:
    """Return the trials at the statistic and the prices of a space file."""
    return [trial.at(space.statistic).priced(space.prices) for trial in trials] if space is not None else list(trials)


def _chosen(trials: Sequence[Trial], text: str, *, where: str) -> list[list[Trial]]:
    """Return the trials of each workload that contains a text, those of most launches first.

    Raises:
        StoreError: the store is empty, or no workload contains the text.
    """
    from torchx_cubicml.predictors.tune_rounds import by_workload
    from torchx_cubicml.records.value_text import config_text

    groups = sorted(by_workload(trials), key=lambda group: -len(group))
    if not groups:
        raise StoreError(f"store {where} is empty: no launch has been recorded in it")
    chosen = [group for group in groups if text in config_text(group[0].workload)]
    if not chosen:
        some = "; ".join(config_text(group[0].workload)[:100] for group in groups[:3])
        raise StoreError(f"--workload {text!r:.100}: no workload of store {where} contains it, which has: {some}")
    return chosen


def _objective(trials: Sequence[Trial], space: SearchSpace | None) -> str:
    """Return the objective that the space file states, if a trial has it; else that of most trials."""
    from torchx_cubicml.predictors.tune_rounds import table_objective

    stated = space is not None and space.is_objective_stated
    if space is not None and stated and any(trial.throughput(space.objective) for trial in trials):
        return space.objective
    return table_objective(trials)


def _chapter(view: WorkloadView) -> Chapter:
    """Return the sections of one workload."""
    from torchx_cubicml.cli.report_sections import sections_of, short_result
    from torchx_cubicml.plots.round_figures import facts_text, heading
    from torchx_cubicml.report.document import Chapter
    from torchx_cubicml.report.markup import joined

    trial = view.trials[0]
    return Chapter(
        heading=heading(trial),
        note=facts_text(trial, view.objective),
        summary=short_result(view),
        body=joined(*sections_of(view)),
    )


def _about(trials: int, workloads: int) -> str:
    many = f" of {workloads} workloads" if workloads > 1 else ""
    return f"{trials:,} trial{'s' if trials != 1 else ''}{many}, read on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error
