"""Output of the commands on a terminal, in a file or a pipe: its width, lines that fit it, and tables that fit it."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from torchx_cubicml.settings import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console
    from rich.table import Column, Table

_PLAIN_WIDTH = 100  # columns of a file or a pipe
_LEAST_WIDTH = 20  # of a text beside its indent
_LEAST_FLEXIBLE = 30  # columns of the flexible column of a table
_NATURAL = 100_000  # columns in which no table is cut
_TOML_LINE = re.compile(r"\s*(\[[\w.]+\]|\w+ = \S.*)$")


def open_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as its terminal; a file or a pipe has ``COLUMNS``, else 100 columns.

    Texts are printed as they are: ``[bold]`` is no markup, and ``1:100:1`` holds no emoji.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal:
        console.width = columns() or _PLAIN_WIDTH
    return console


def fitted(
    console: Console, make: Callable[[frozenset[str]], Table], optional: Sequence[str] = (), *, flexible: str = ""
) -> Table:
    """Return a table that fits the console: columns are left out, one after the other, until it does.

    Args:
        console: to print on.
        make: function from the names of the columns to leave out to the table.
        optional: names of the columns that may be left out, the least important first.
        flexible: name of the column that takes the room which the others leave, but not less than
            ``_LEAST_FLEXIBLE`` columns where another one can be left out.
    """
    table = make(frozenset())
    for count in range(1, len(optional) + 1):
        if _lacking(console, table, flexible, least=_LEAST_FLEXIBLE) <= 0:
            break
        table = make(frozenset(optional[:count]))
    lacking = _lacking(console, table, flexible, least=_NATURAL)
    for column in table.columns:
        if column.header == flexible and lacking > 0:
            column.width = max(_longest(column) - lacking, _LEAST_WIDTH)
    return table


def _lacking(console: Console, table: Table, flexible: str, *, least: int) -> int:
    """Return the number of columns of text that a table lacks, if its flexible column had at most ``least`` of them."""
    from rich.measure import Measurement

    natural = Measurement.get(console, console.options.update(max_width=_NATURAL), table).maximum
    can_give = [_longest(column) - least for column in table.columns if column.header == flexible]
    return natural - max(0, *can_give, 0) - console.width


def _longest(column: Column) -> int:
    """Return the width of the longest line of a column of plain texts."""
    from rich.cells import cell_len

    return max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).split("\n"))


def wrapped(text: str, width: int, *, first: str = "", indent: str = "") -> list[str]:
    """Return a text as lines of at most ``width`` characters, except for words that are longer.

    Args:
        text: one paragraph.
        width: of a line.
        first: what the first line begins with.
        indent: what the others begin with.
    """
    return textwrap.wrap(
        text,
        max(width, len(indent) + _LEAST_WIDTH),
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def joined(texts: Sequence[str], width: int, *, first: str = "", indent: str = "") -> list[str]:
    """Return texts as lines, separated by commas; none is broken over lines unless it is longer than one.

    >>> joined(["batch 2 -> 16", "sharding DDP -> NO_SHARD"], 24, first="3 search ", indent="  ")
    ['3 search batch 2 -> 16,', '  sharding DDP ->', '  NO_SHARD']
    """
    glue = "\N{NO-BREAK SPACE}"
    whole = [text.replace(" ", glue) if len(indent) + len(text) < width else text for text in texts]
    return [line.replace(glue, " ") for line in wrapped(", ".join(whole), width, first=first, indent=indent)]


def broken_lines(text: str, width: int, *, indent: str = "  ") -> list[str]:
    r"""Return the lines of a text, each broken where it is longer than ``width``; its own line ends stay.

    A line of a space file stays whole, so that it can be copied.

    >>> broken_lines("it failed:\n  no such file or directory\nflag = '--accumulate-steps'", 24)
    ['it failed:', '  no such file or', '    directory', "flag = '--accumulate-steps'"]
    """
    lines = []
    for line in text.split("\n"):
        start = line[: len(line) - len(line.lstrip())]
        is_whole = len(line) <= width or _TOML_LINE.match(line)
        lines += [line] if is_whole else wrapped(line.lstrip(), width, first=start, indent=start + indent)
    return lines


def say(console: Console, text: str, *, indent: str = "  ") -> None:
    """Print sentences, each line of them broken where it is longer than the console is wide."""
    lines = broken_lines(text, console.width, indent=indent)
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)


def command_lines(words: Sequence[str], width: int, *, indent: str = "  ") -> list[str]:
    r"""Return a command for a shell, over several lines where it is longer than one.

    >>> print("\n".join(command_lines(["torchx", "run", "a b", "--flag", "1"], 24)))
      torchx run 'a b' \
        --flag 1
    """
    from torchx_cubicml.records.shell_words import shell_lines, shell_word

    return shell_lines([shell_word(word) for word in words], width, indent=indent)
