"""Reader of the files of a user that a launch looks at, with limits of kind, size and depth.

Only regular files are opened. Whoever opens a pipe takes it, or its content, from the job.
"""

from __future__ import annotations

import ast
import os
import re
import stat
import tomllib
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1024 * 1024  # of a file
MAX_DEPTH = 50  # names in one key, or tables and lists inside one another
# Strings, comments, and all else but the dots of a key and what ends one; each part ends where the text does.
_NO_MARKS = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?|#[^\n]*+'
    r"|[^][{}.,=\n\"'#]++",
    re.DOTALL,
)


def read_head(path: str | Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a regular file, or all if it has fewer.

    Raises:
        LaunchError: it cannot be read, or is no regular file.
    """
    try:
        with open(path, "rb", opener=_opened) as file:
            return file.read(count) or b""  # without a byte that can be read now, it is None
    except (OSError, ValueError, MemoryError) as error:  # ValueError: the path has a null byte
        why = getattr(error, "strerror", None) or str(error) or "it does not fit into memory"
        raise LaunchError(f"{path} cannot be read here: {why}") from None


def read_bytes(path: str | Path, *, most: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        LaunchError: it cannot be read, is no regular file, or has more than ``most`` bytes.
    """
    content = read_head(path, most + 1)
    if len(content) > most:
        raise LaunchError(f"{path} cannot be read here: it has more than {most} bytes")
    return content


def read_text(path: str | Path, *, most: int = MAX_BYTES, errors: str = "strict") -> str:
    """Return the text of a regular file in UTF-8, without a byte-order mark.

    Args:
        path: of the file.
        most: bytes that it may have.
        errors: what happens to bytes of another encoding, as for ``bytes.decode``.

    Raises:
        LaunchError: as for ``read_bytes``, or it is of another encoding.
    """
    try:
        return read_bytes(path, most=most).decode("utf-8-sig", errors)
    except UnicodeDecodeError:
        raise LaunchError(f"{path} cannot be read here: it is not UTF-8 text") from None


def read_python(path: str | Path) -> tuple[str, ast.Module | None]:
    """Return the text of a Python file, empty if it cannot be read, and its tree, ``None`` if this Python has none."""
    text = ""
    try:
        content = read_bytes(path)
        text = content.decode("utf-8-sig", errors="replace")
        return text, ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text, None


def parse_toml(text: str) -> dict[str, object]:
    """Return the content of a TOML text.

    Raises:
        ValueError: it is no TOML, or a key has more than ``MAX_DEPTH`` names, whose square is the time of the parser.
        RecursionError: it is too deeply nested.

    >>> parse_toml("a.b = 1.5")
    {'a': {'b': 1.5}}
    """
    if "." * MAX_DEPTH in _NO_MARKS.sub("", text):
        raise ValueError(f"a key has more than {MAX_DEPTH} names")
    return tomllib.loads(text)


def _opened(path: str, flags: int) -> int:
    if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - called with a text
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # it may be another file since
            return descriptor
        os.close(descriptor)
    raise OSError("it is no regular file")
