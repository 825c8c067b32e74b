"""Arguments that argparse reads from files which the command names (``fromfile_prefix_chars``)."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.source_files import nodes_of
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.launch.source_files import SourceFile

_DEEPEST = 5  # files that name files
_MOST_WORDS = 10_000  # and files, in all files of a command
_OWN_READER = "convert_arg_line_to_args"  # method of a parser that reads a line in its own way


def with_file_arguments(launch: Launch, files: Sequence[SourceFile]) -> tuple[Launch, str]:
    """Return the launch with the words of argument files in their place, and the word of a file that is not read.

    Words before a file that is not read are left out: it may state each of them anew.

    Args:
        launch: a command.
        files: source files of its program.
    """
    trees = [file.tree for file in files if file.tree is not None]
    prefixes = "".join(_prefixes(trees))
    if not prefixes or not any(word[:1] and word[0] in prefixes for word in launch.script_args):
        return launch, ""
    has_own_reader = any(getattr(node, "name", getattr(node, "attr", "")) == _OWN_READER for node in _nodes(trees))
    words: list[str] = []
    unread = ""
    steps = iter(range(_MOST_WORDS))
    for word in launch.script_args:
        found = [word] if word[:1] not in prefixes else None if has_own_reader else _words_of(word, prefixes, steps)
        if found is None:
            words, unread = [], word
        else:
            words += found
    return replace(launch, script_args=tuple(words)), unread


def _words_of(word: str, prefixes: str, steps: Iterator[int], depth: int = 0) -> list[str] | None:
    """Return the words for which one stands, one per line of its file; ``None`` where they are not known.

    Args:
        word: of the command or of a file.
        prefixes: characters that mark a file.
        steps: one for each word and each file that may still be read, as files may name one another many times.
        depth: of the file that holds the word; 0 for the command.
    """
    if next(steps, None) is None:
        return None
    if not word or word[0] not in prefixes:
        return [word]
    if depth >= _DEEPEST:
        return None
    try:
        lines = read_text(word[1:]).splitlines()
    except LaunchError:
        return None
    words: list[str] = []
    for line in lines:
        found = _words_of(line, prefixes, steps, depth + 1)
        if found is None:
            return None
        words += found
    return words


def _prefixes(trees: Sequence[ast.Module]) -> Iterator[str]:
    """Yield the characters with which the parsers of a program mark a file; ``@`` where it is not told which."""
    for node in _nodes(trees):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "fromfile_prefix_chars":
                value = getattr(keyword.value, "value", "@")
                yield value if isinstance(value, str) else "" if value is None else "@"


def _nodes(trees: Sequence[ast.Module]) -> Iterator[ast.AST]:
    return (node for tree in trees for node in nodes_of(tree))
