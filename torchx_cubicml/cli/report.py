"""Sub-command ``torchx cubicml report``: writes a store as one HTML page that needs no network, or in other formats."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import add_store, store_url
from torchx_cubicml.cli.history_filters import find_trial
from torchx_cubicml.cli.option_choices import REPORT_FORMATS, add_choice
from torchx_cubicml.cli.progress_bar import progress, read_store
from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.records.redaction import mask, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from torchx_cubicml.cli.report_formats.store_report import StoreReport
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.space import SearchSpace

_MOST_ON_PAGE = 20  # workloads with a chapter, those of most launches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the store, the space file, the filter, the format and the file to write."""
    add_store(parser)
    text = "space file (TOML), for its objective, statistic and prices (default: what most trials were measured in)"
    parser.add_argument("--space", default="", metavar="FILE", help=text)
    text = "only workloads whose program or facts contain TEXT, such as gpt.py or world_size=8"
    parser.add_argument("--workload", default="", metavar="TEXT", help=text)
    text = "trial whose config the breakdown of time and memory compares first (default: the best but one)"
    parser.add_argument("--config", default="", metavar="TRIAL_ID", help=text)
    note = "default: by the ending of --out, else html"
    add_choice(parser, "--format", REPORT_FORMATS, "format of the file", note=note, default="")
    text = "file to write, or - for standard output (default: report.html, or of the format)"
    parser.add_argument("-o", "--out", default="", metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    """Write the report, and print how to open it."""
    from torchx_cubicml.cli.report_formats import STDOUT, check_packages, content, format_and_file
    from torchx_cubicml.store import absolute_url
    from torchx_cubicml.store.collector import without_collector

    kind, out = format_and_file(args.format, args.out)
    check_packages(kind)
    space, url = _space(args.space), absolute_url(store_url(args))
    with without_collector():
        recorded = read_store(url, is_json=False)
        with progress("writing the report") as report:
            made = content(kind, _report(args, url, space, recorded, report=report))
    if out == STDOUT:
        sys.stdout.buffer.write(made)
        return 0
    _write(Path(out), made)
    how = ": open it in a browser" if kind == "html" else ""
    print(f"torchx-cubicml: wrote {out}{how}", file=sys.stderr)  # noqa: T201 - the command's own output
    return 0


def _report(
    args: argparse.Namespace,
    url: str,
    space: SearchSpace | None,
    recorded: tuple[list[Trial], tuple[str, ...]],
    *,
    report: Callable[[int, int], None],
) -> StoreReport:
    """Return the part of the store that the options choose.

    Args:
        args: the options.
        url: of the store.
        space: of the space file; ``None`` without one.
        recorded: trials of the store, and warnings about unreadable objects.
        report: takes the sections made, and all.
    """
    from torchx_cubicml.cli.report_formats.store_report import StoreReport
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.report.sections.figures import Colours, missing_renderer
    from torchx_cubicml.store.predictor_choice import latest_choice
    from torchx_cubicml.tuner.results import read_results

    trials, warnings = _terms(recorded[0], space, url), recorded[1]
    chosen = args.config and find_trial(trials, args.config, store=url).trial_id
    groups = _chosen(trials, args.workload, where=mask(url))
    notes, colours, missing = read_results(url), Colours(), missing_renderer()
    predictor = latest_choice(url)
    views = [
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
            chosen=chosen,
        )
        for place, group in enumerate(groups, start=1)
    ]
    return StoreReport(
        store=printable(mask(url)),
        read_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        trials=[trial for group in groups for trial in group],
        views=views,
        chapters=min(len(views), _MOST_ON_PAGE),
        predictor=predictor,
        notes=[printable(mask(warning)) for warning in warnings],
        colours=colours,
        missing=missing,
        report=report,
    )


def _space(file: str) -> SearchSpace | None:
    from torchx_cubicml.space.toml import load_space

    return load_space(file) if file else None


def _terms(trials: list[Trial], space: SearchSpace | None, url: str) -> list[Trial]:
    """Return the trials in the terms of a space file, at its statistic and prices."""
    from torchx_cubicml.history.history import History
    from torchx_cubicml.history.passes import with_stated_configs
    from torchx_cubicml.launch.config_io import program_command
    from torchx_cubicml.store.digest_key import digest_keys

    if space is None:
        return trials
    history = History(space=space, workload={}, current={}, trials=trials, keys=digest_keys(url))
    found = with_stated_configs(replace(history, command=program_command(None, space))).trials
    return [trial.at(space.statistic).priced(space.prices) for trial in found]


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


def _write(path: Path, made: bytes) -> None:
    try:
        path.write_bytes(made)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error
