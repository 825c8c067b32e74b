"""Names of flags and keys that a program says it does not know, read from the reason of its failure.

A name counts only as the direct object of the complaint. So a value that the program does not know, beside the name of
its flag, is no unknown name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPLAINT = re.compile(
    r"\b(?:unknown|unrecogni[sz]ed|unexpected|no such|undefined)"
    r"(?: (?:config|configuration|command|line|command-line|keyword|cli|extra|additional))*"
    r" (?:argument|option|flag|key|parameter|field|setting)(?:\(s\)|s\b|\b)"
    r"|not used by the \w*ArgumentParser",
    re.IGNORECASE,
)
_STRUCT = re.compile(r"could not override '([^']+)'|\bkey '([^']+)' is not in struct", re.IGNORECASE)
_HINT = re.compile(r"[;(?]|\.\s|\bdid you mean\b|\bpossible\b", re.IGNORECASE)  # begins what does not name the object
_DIRECT = re.compile(r"\s*(?:(?P<mark>['\"`])(?P<quoted>[^'\"`]+)(?P=mark)|(?P<flag>--?[A-Za-z][\w.-]*))(?P<rest>.*)")
_ANOTHER = re.compile(r"['\"`]\w|(?<!\S)--?[A-Za-z]")
_WORD = re.compile(r"[^\s,'\"`\[\]{}]+")


def unknown_names(reason: str) -> frozenset[str]:
    """Return the names that a program says it does not know, as ``plain_name`` spells them.

    >>> sorted(unknown_names("train.py: error: unrecognized arguments: --lr 3 --a-size=2"))
    ['a_size', 'lr']
    >>> unknown_names("ValueError: Unknown attention option 'flash3' for attn")
    frozenset()
    """
    return frozenset(plain_name(name) for line in reason.splitlines() for name in _in_line(line)) - {""}


def plain_name(name: str) -> str:
    """Return a name without the dashes before it and the value behind it; hyphens and underscores are the same.

    >>> plain_name("--a-size=2")
    'a_size'
    """
    return name.lstrip("-+").partition("=")[0].replace("-", "_")


def _in_line(line: str) -> Iterator[str]:
    for found in _STRUCT.finditer(line):
        yield found[1] or found[2]
    complaint = _COMPLAINT.search(line)
    if complaint is None:
        return
    said = _HINT.split(line[complaint.end() :], maxsplit=1)[0]
    before, colon, listed = said.partition(":")
    if colon and not before.strip():
        yield from _listed(listed)
        return
    direct = _DIRECT.match(said)
    if direct is not None and not _ANOTHER.search(direct["rest"]):
        yield direct["quoted"] or direct["flag"]


def _listed(text: str) -> list[str]:
    """Return the names in a list: the flags among flags with their values, ``key=value`` words, else single words."""
    entries = [_WORD.findall(entry) for entry in text.split(",")]
    words = [word for entry in entries for word in entry]
    if any(map(_is_flag, words[:1])):
        return list(filter(_is_flag, words))
    if any("=" in word for word in words[:1]):
        return [word for word in words if "=" in word]
    return [entry[0] for entry in entries if len(entry) == 1]


def _is_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None
