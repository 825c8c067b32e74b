"""Section of the result: the best config as a difference from the user's own, its gain, its cost and its command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOUBT = re.compile(r"± [\d.]+ %|within a factor of [\d.]+")  # stays on one line
_MOST_CHANGES = 60  # rows; a config can have hundreds of parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Result of one workload, in plain texts.

    Args:
        figure: the gain in large type, such as ``2.93x``; empty where nothing is compared.
        meaning: words after it.
        sentence: the comparison in one sentence, with its doubt.
        is_claimed: whether a gain is claimed; else the figure is muted.
        interval: gain, and the lower and upper end of its interval; ``None`` without one.
        facts: label, value and a note on each fact.
        changes: parameter, the user's value and the other config's, of those that differ.
        best_label: heading of their column.
        unchanged: number of parameters that do not differ.
        command: to run the best config; empty where it is unknown.
        command_label: words above the command.
        notes: sentences on the command and on the result.
    """

    figure: str = ""
    meaning: str = ""
    sentence: str = ""
    is_claimed: bool = False
    interval: tuple[float, float, float] | None = None
    facts: Sequence[tuple[str, str, str]] = ()
    changes: Sequence[tuple[str, str, str]] = ()
    best_label: str = ""
    unchanged: int = 0
    command: str = ""
    command_label: str = "Command to run"
    notes: Sequence[str] = ()


def headline_html(headline: Headline) -> Html:
    """Return the section."""
    figure = element("span", headline.figure, class_="gain" if headline.is_claimed else "gain muted")
    big = [element("p", figure, element("span", headline.meaning, class_="meaning"), class_="verdict")]
    parts = [
        *(big if headline.figure or headline.meaning else []),
        *([_interval(headline.interval, is_claimed=headline.is_claimed)] if headline.interval else []),
        *([element("p", headline.sentence, class_="sentence")] if headline.sentence else []),
        _facts(headline.facts),
    ]
    blocks = [element("div", *parts, class_="card")]
    columns = [_changes(headline)] if headline.changes else []
    columns += [_command(headline.command, headline.command_label)] if headline.command else []
    blocks.append(element("div", *(element("div", column) for column in columns), class_="pair"))
    blocks += [element("p", note, class_="note") for note in headline.notes]
    return joined(*blocks)


def _interval(interval: tuple[float, float, float], *, is_claimed: bool) -> Html:
    """Return a bar from the lower to the upper end of the gain, with the user's own config as a mark at 1x."""
    gain, low, high = interval
    left, right = min(low, 1.0), max(high, 1.0)
    margin = 0.04 * (right - left) or 0.1
    scale = 100.0 / (right - left + 2 * margin)
    places = {name: (value - left + margin) * scale for name, value in {"one": 1.0, "low": low, "high": high}.items()}
    middle = (gain - left + margin) * scale
    anchor = "at-start" if places["one"] < 12.0 else "at-end" if places["one"] > 88.0 else ""
    marks = (
        f'<line class="axis" x1="0" x2="100%" y1="12" y2="12"/>'
        f'<line class="span" x1="{places["low"]:.2f}%" x2="{places["high"]:.2f}%" y1="12" y2="12"/>'
        f'<line class="own" x1="{places["one"]:.2f}%" x2="{places["one"]:.2f}%" y1="2" y2="22"/>'
        f'<circle class="dot" cx="{middle:.2f}%" cy="12" r="6"/>'
        f'<text class="{anchor}" x="{places["one"]:.2f}%" y="38">your config</text>'
    )
    name = f"gain {gain:.2f}x, interval from {low:.2f}x to {high:.2f}x; your own config is 1x"
    svg = f'<svg class="interval{"" if is_claimed else " muted"}" role="img" height="44">{marks}</svg>'
    return Html(svg.replace('role="img"', f'role="img" aria-label="{name}"'))


def _in_one_piece(found: re.Match[str]) -> str:
    return found[0].replace(" ", "\N{NO-BREAK SPACE}")


def _facts(facts: Sequence[tuple[str, str, str]]) -> Html:
    rows = [
        element(
            "div",
            element("dt", label),
            element("dd", value, *([element("small", _DOUBT.sub(_in_one_piece, note))] if note else [])),
        )
        for label, value, note in facts
    ]
    return element("dl", *rows, class_="facts") if rows else Html("")


def _changes(headline: Headline) -> Html:
    changes, unchanged, best = headline.changes, headline.unchanged, headline.best_label
    compares = any(before for _, before, _ in changes)
    names = ("parameter", "your config", best) if compares else ("parameter", best)
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    rows = [
        element(
            "tr",
            element("th", name, scope="row"),
            *([element("td", _lines(before))] if compares else []),
            element("td", element("strong", _lines(after))),
        )
        for name, before, after in changes[:_MOST_CHANGES]
    ]
    left_out = len(changes) - len(rows)
    stay = "The other one stays" if unchanged == 1 else f"The other {unchanged} stay"
    texts = [f"{left_out} more differ." if left_out else "", f"{stay} as in yours." if unchanged else ""]
    note = " ".join(filter(None, texts))
    return joined(
        element("h3", "What changes" if compares else "Its config"),
        element("div", element("table", head, element("tbody", *rows), class_="changes"), class_="scroll"),
        *([element("p", note, class_="note")] if note else []),
    )


def _lines(value: str) -> Html:
    """Return a value whose lines may end behind each comma: a value per layer is long."""
    return Html(",<wbr>".join(joined(part) for part in value.split(",")))


def _command(command: str, label: str) -> Html:
    """Return the command with each word in one piece: a line would else end between the hyphens of a flag."""
    words = [element("span", word, class_="word") for word in command.split(" ")]
    code = element("code", Html(" ".join(words)))
    return joined(
        element("h3", label),
        element(
            "div",
            element("pre", code, tabindex="0", role="group", aria_label=label),
            element("button", "Copy", type="button", class_="copy", aria_label=f"Copy: {label}"),
            class_="command",
        ),
    )
