"""Readable command of a launch, which a dry run prints besides. What it costs is told by ``suggest``, on demand."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import message_line
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.shell_words import shell_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN_WIDTH = 100  # columns without a terminal


def dry_run_command(what: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return the message lines that show the command of a launch, without the recorder and the fallback.

    Args:
        what: sentence before the command.
        words: of the command, as a shell reads them.
    """
    lines = shell_lines(words, shutil.get_terminal_size((_PLAIN_WIDTH, 1)).columns, indent="    ")
    return (message_line(f"{what}:"), *map(printable, lines))
