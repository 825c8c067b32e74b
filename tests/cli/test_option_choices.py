"""Options of every sub-command: those with a fixed set of values list them in ``--help``."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor.acquisition import ACQUISITIONS
from torchx_cubicml.cli import CubicMLCommand, option_choices
from torchx_cubicml.cli.report_formats import FORMATS as REPORT_FORMATS
from torchx_cubicml.cli.table_formats.registry import FORMATS as TABLE_FORMATS
from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.searchers import SEARCHERS

if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN = {
    *("--store", "--space", "--scheduler", "--scheduler_args", "--workspace", "--scratch", "--write-config"),
    *("--output", "--out", "--log", "--map", "--text", "--fact", "--mapping", "--workload", "--parameters"),
    *("--throughput", "--program", "--status", "--completed", "--out-of-memory", "--time", "--peak-memory-gib"),
    *("--config", "--since", "--before", "--owner", "--commit", "--package-version", "--into", "--device"),
}
"""Options that take any text: files, addresses, names of the user's own."""
PATTERNS = {
    "--budget": ("launches", "gpu-hours", "hours"),
    "--start": ("designed", "random", "random:N"),
    "--objectives": ("tokens_per_second", "samples_per_device_hour", "tokens_per_joule"),
}
"""Options that take a text of a form, and what their help names."""


def walked(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from walked(inner)
        elif action.option_strings:
            yield parser, action


@pytest.fixture(scope="module")
def options() -> list[tuple[argparse.ArgumentParser, argparse.Action]]:
    parser = argparse.ArgumentParser(prog="cubicml")
    CubicMLCommand().add_arguments(parser)
    found = list(walked(parser))
    assert len({parser.prog for parser, _ in found}) > 15
    return found


def test_every_fixed_set_is_in_the_help(options: list[tuple[argparse.ArgumentParser, argparse.Action]]) -> None:
    for parser, action in options:
        words = re.findall(r"[\w-]+", str(action.help))
        assert set(action.choices or ()) <= {*words}, (parser.prog, action.option_strings)


def test_every_option_is_a_switch_a_number_or_of_known_kind(
    options: list[tuple[argparse.ArgumentParser, argparse.Action]],
) -> None:
    named = set()
    for parser, action in options:
        flag = max(action.option_strings, key=len)
        if action.nargs == 0 or action.choices or (action.type and action.type is not str):
            continue
        assert flag in OPEN or flag in PATTERNS, f"{parser.prog} {flag}: give it choices, or list it here"
        assert all(text in str(action.help) for text in PATTERNS.get(flag, ())), flag
        named.add(flag)
    assert named == OPEN | {*PATTERNS}


@pytest.mark.parametrize(
    ("names", "table"),
    [
        (option_choices.SEARCHER_NAMES, SEARCHERS),
        (option_choices.ACQUISITION_NAMES, ACQUISITIONS),
        (option_choices.PREDICTOR_NAMES, PREDICTORS),
        (option_choices.TABLE_FORMATS, TABLE_FORMATS),
        (option_choices.REPORT_FORMATS, REPORT_FORMATS),
    ],
    ids=["searchers", "acquisitions", "predictors", "tables", "reports"],
)
def test_the_names_are_those_of_the_tables(names: tuple[str, ...], table: dict[str, object]) -> None:
    assert set(names) == set(table)


def test_an_illegal_value_is_refused_with_the_legal_ones(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="cubicml")
    CubicMLCommand().add_arguments(parser)
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["evaluate", "--predictor", "oracle"])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("cubicml evaluate: error: argument --predictor: invalid choice: 'oracle'")
    assert all(name in line for name in PREDICTORS)
