"""Report as Markdown, for a chat or a wiki: result, facts, command and best trials of each workload.

Texts of the store are escaped, so that they are no markup: neither Markdown nor the HTML that Markdown may hold.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.cli.observed_config import differing_values
from torchx_cubicml.cli.report_sections.result import headline_of, summary_of
from torchx_cubicml.launch.messages import interval_text, rate_text
from torchx_cubicml.plots.round_figures import facts_text, heading
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.cli.report_formats.store_report import StoreReport
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial

_BEST = 10  # trials of the table
_MOST_PARAMETERS = 8  # its columns
_MOST_LETTERS = 300  # of one text
_MARKUP = re.compile(
    r"[\\`*\[\]<>|~&@$]"  # emphasis, links, HTML, tables, entities, mentions, formulas
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis; inside a word it is none
    r"|:(?=//)|(?<=www)\.(?=\w)"  # addresses that become links
    r"|^(?:[#+=-]|\d+(?=[.)](?:\s|$)))"  # headings and lists
)
_FENCE = re.compile(r"`{3,}")


def content(report: StoreReport, *, kind: str) -> bytes:
    """Return the text."""
    del kind
    lines = [f"# {escaped(report.title)}", "", escaped(report.about), ""]
    for note in report.notes:
        lines += [escaped(note), ""]
    for view in report.views[: report.chapters]:
        lines += _workload(view)
    left_out = len(report.views) - report.chapters
    if left_out:
        lines += [f"{left_out:,} workloads with fewer launches are left out.", ""]
    return "\n".join(lines).encode("utf-8", errors="backslashreplace")


def escaped(text: str) -> str:
    r"""Return a text of one line that is no markup.

    >>> print(escaped("a|b <img> `c` [d](e) f_g"))
    a\|b \<img\> \`c\` \[d\](e) f_g
    """
    text = " ".join(printable(mask(text[: 4 * _MOST_LETTERS])).split())
    text = text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
    return _MARKUP.sub(lambda match: f"{match[0]}\\" if match[0].isdigit() else f"\\{match[0]}", text)


def _workload(view: WorkloadView) -> Iterator[str]:
    headline = headline_of(view)
    yield from (f"## {escaped(heading(view.trials[0]))}", "")
    yield from (escaped(facts_text(view.trials[0], view.objective)), "")
    yield from (f"**{escaped(summary_of(headline))}**", "")
    if headline.sentence:
        yield from (escaped(headline.sentence), "")
    yield from (f"- {escaped(label)}: {escaped(value)}{_note(note)}" for label, value, note in headline.facts)
    yield ""
    if headline.changes:
        compares = any(before for _, before, _ in headline.changes)
        heads = ("parameter", "your config", headline.best_label) if compares else ("parameter", headline.best_label)
        yield from _table(heads, [row if compares else (row[0], row[2]) for row in headline.changes])
        yield from ([f"{headline.unchanged} more stay as in yours.", ""] if headline.unchanged else [])
    if headline.command:
        fence = "`" * (max([2, *(len(each) for each in _FENCE.findall(headline.command))]) + 1)
        yield from (f"{escaped(headline.command_label)}:", "", fence, headline.command, fence, "")
    yield from (line for note in headline.notes for line in (escaped(note), ""))
    yield from _best_trials(view)


def _note(note: str) -> str:
    return f" ({escaped(note)})" if note else ""


def _best_trials(view: WorkloadView) -> Iterator[str]:
    """Yield a table of the measured trials of highest throughput."""
    rated = [(rate, trial) for trial in view.trials if (rate := trial.throughput(view.objective)) is not None]
    best = [trial for _, trial in sorted(rated, key=lambda pair: -pair[0])[:_BEST]]
    if not best:
        return
    names = _differing([trial for _, trial in rated])
    heads = ("throughput", "±", *names)
    rows = [
        (
            rate_text(trial.throughput(view.objective) or 0.0, view.objective),
            interval_text(trial.uncertainty(view.objective)),
            *(differing_values(trial).get(name) or value_text(trial.config.get(name, "")) for name in names),
        )
        for trial in best
    ]
    yield f"The {len(best)} launches of highest throughput, of {len(view.trials):,}:"
    yield ""
    yield from _table(heads, rows)


def _differing(trials: Sequence[Trial]) -> list[str]:
    names = dict.fromkeys(name for trial in trials for name in trial.config)
    alike = [name for name in names if len({config_key({name: each.config.get(name, "")}) for each in trials}) > 1]
    return alike[:_MOST_PARAMETERS]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(escaped, heads))} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(map(escaped, row))} |" for row in rows)
    yield ""
