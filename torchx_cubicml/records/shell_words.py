"""Words of a command as a shell reads them, without a character that could steer a terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def shell_text(words: Sequence[str]) -> str:
    """Return a command ready for a shell; its first words may be settings of environment variables.

    >>> shell_text(["N=a b", "python", "t.py", "--x=a b"])
    "N='a b' python t.py '--x=a b'"
    """
    start = next((number for number, word in enumerate(words) if not _is_setting(word)), len(words))
    settings = (f"{name}={shell_word(value)}" for name, _, value in (word.partition("=") for word in words[:start]))
    return " ".join((*settings, *map(shell_word, words[start:])))


def shell_word(word: str) -> str:
    r"""Return a word as a shell reads it; one with control characters as bash, ksh and zsh do (ANSI-C quoting).

    >>> print(shell_word("a b"), shell_word("it's \x1b[2J"))
    'a b' $'it\'s \x1b[2J'
    """
    if printable(word) == word:
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def shell_lines(quoted: Sequence[str], width: int, *, indent: str) -> list[str]:
    """Return the words of a shell as lines, with a backslash where a line is continued; a flag stands with its value.

    Args:
        quoted: words as a shell reads them.
        width: of a line; a word that is longer has a line of its own.
        indent: what the first line begins with; the others are indented by two more.
    """
    lines, line = [], indent
    for place, word in enumerate(quoted):
        follows = quoted[place + 1] if place + 1 < len(quoted) and word.startswith("-") else ""
        needed = len(word) + (len(follows) + 1 if follows and not follows.startswith("-") else 0)
        if line.strip() and len(line) + 1 + needed + 2 > width:
            lines.append(f"{line} \\")
            line = f"{indent}  "
        line += word if not line.strip() else f" {word}"
    return [*lines, line]


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if printable(character) == character:
        return character
    errors = (
        "surrogateescape" if "\udc80" <= character <= "\udcff" else "replace"
    )  # a byte of an argument, as Python reads it
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors=errors))


def _is_setting(word: str) -> bool:
    name, joined, _ = word.partition("=")
    return bool(joined) and name.isidentifier()
