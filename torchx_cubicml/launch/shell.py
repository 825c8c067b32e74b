"""Shell words: a line with one plain command, split into words with their values and their shell text.

TorchX replaces macros such as ``${app_id}`` in a role's arguments before a shell reads them, and ``$$`` with ``$``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_BLANK = re.compile(r"(?:[ \t]+|(?<=[ \t])\\\n)*")
_PIECE = re.compile(
    r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\`]|\\.)*)"|\\(?P<escaped>[^\n])|(?P<bare>[^\s'"\\`;&|<>()])""",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_DOUBLE_ESCAPE = re.compile(r'\\([$`"\\\n])')
_EXPANDED_BARE = frozenset("$*?[{~")


@dataclass(frozen=True, slots=True)
class ShellWord:
    """One word of a command.

    Args:
        value: argument that the program receives.
        text: text of the word in the shell line.
        literal: whether ``value`` is certain, because no shell expansion is left in it.
    """

    value: str
    text: str
    literal: bool = True


def split_line(line: str) -> list[ShellWord]:
    """Return the words of a shell line that is one plain command.

    Raises:
        LaunchError: the line has several commands, a redirection, a substitution, or an open quote.

    >>> [word.value for word in split_line("torchrun --rdzv_id '${app_id}' train.py 'a b'")]
    ['torchrun', '--rdzv_id', '${app_id}', 'train.py', 'a b']
    """
    line = line.strip()
    words: list[ShellWord] = []
    position = _end_of_blank(line, 0)
    while position < len(line):
        word = _word_at(line, position)
        words.append(word)
        after = position + len(word.text)
        position = _end_of_blank(line, after)
        if position == after < len(line):
            raise _not_plain(line[position])
    if words and _ASSIGNMENT.match(words[0].text):
        raise LaunchError("the shell line sets variables in front of the command")
    return words


def word_of_argument(argument: str) -> ShellWord:
    """Return the word for an argument that reaches a program without a shell.

    >>> word_of_argument("a b $$5")
    ShellWord(value='a b $5', text="'a b $$5'", literal=True)
    """
    return ShellWord(value=without_macro_escape(argument), text=shlex.quote(argument))


def quote(value: str) -> str:
    """Return the shell text that passes a value unchanged through TorchX's macros and the shell.

    >>> quote("it costs $5"), quote("8")
    ("'it costs $$5'", '8')
    """
    # TorchX's Slurm scheduler substitutes its macros once more, and there no escape counts. "$" is inside single quotes
    # here; closing and reopening them splits the text of the macro.
    return with_macro_escape(shlex.quote(value).replace("${", "$''{"))


def with_macro_escape(value: str) -> str:
    """Return the text that one pass of macro substitution, by TorchX or torchrun, turns into ``value``."""
    return value.replace("$", "$$")


def without_macro_escape(text: str) -> str:
    """Return ``text`` with the escapes of one pass of macro substitution undone, and its macros as they are."""
    return text.replace("$$", "$")


def join(words: Iterable[ShellWord]) -> str:
    """Return the shell line of ``words``."""
    return " ".join(word.text for word in words)


def respell(words: Sequence[ShellWord], values: Sequence[str], *, spell: Callable[[str], str]) -> list[str]:
    """Return texts for ``values``: values already among ``words`` keep their text, and ``spell`` writes the others.

    >>> respell(split_line("--lr 1e-3 --out $HOME"), ["--lr", "2", "--out", "$HOME"], spell=quote)
    ['--lr', '2', '--out', '$HOME']
    """
    texts: list[str] = []
    matcher = SequenceMatcher(None, [word.value for word in words], list(values), autojunk=False)
    for change, start, stop, new_start, new_stop in matcher.get_opcodes():
        if change == "equal":
            texts += [word.text for word in words[start:stop]]
        else:
            texts += [spell(value) for value in values[new_start:new_stop]]
    return texts


def _word_at(line: str, position: int) -> ShellWord:
    if line[position] == "#":
        raise LaunchError("the shell line has a comment")
    start, values, literal = position, [], True
    while match := _PIECE.match(line, position):
        value, certain = _piece(match, at_start=position == start)
        values.append(value)
        literal, position = literal and certain, match.end()
    if position == start:
        raise _not_plain(line[position])
    return ShellWord(value=without_macro_escape("".join(values)), text=line[start:position], literal=literal)


def _piece(match: re.Match[str], *, at_start: bool) -> tuple[str, bool]:
    if match["single"] is not None:
        return match["single"], True
    if match["double"] is not None:
        return _DOUBLE_ESCAPE.sub(lambda found: found[1].strip("\n"), match["double"]), "$" not in match["double"]
    if match["escaped"] is not None:
        return match["escaped"], True
    return match["bare"], match["bare"] not in _EXPANDED_BARE or (match["bare"] == "~" and not at_start)


def _end_of_blank(line: str, position: int) -> int:
    match = _BLANK.match(line, position)
    return match.end() if match is not None else position


def _not_plain(character: str) -> LaunchError:
    if character in "'\"":
        return LaunchError("the shell line has an unclosed quote")
    return LaunchError(f"the shell line is not one plain command (found {character!r})")
