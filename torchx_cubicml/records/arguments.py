"""Digests of a program's arguments: what a later space file needs to read a value, and nothing that can be read.

Flag names, numbers and words such as ``true`` are recorded. Every other text becomes a digest of 32 bits, by which the
words of a space file are recognised (``restored_arguments``), with the suffix of a file that may set defaults or is a
checkpoint. So no path, name or prompt reaches a store. The digest is
keyed (a message authentication code) with the key of the store, so that nobody without the key can try out texts.
Earlier releases recorded digests without a key; they are still recognised.
"""

from __future__ import annotations

import re
from hashlib import blake2s
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import MASK, names_secret
from torchx_cubicml.records.values import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

KEY_ID = "key"
"""Name of the digest of no text, among those of a record: it tells which key of a store the record was made with."""

_MARK, _KEYED_MARK = "~", "~k"
_FLAG = re.compile(r"--[A-Za-z][\w.-]{0,63}|-[A-Za-z](?:\d{1,9})?")
_KEY = re.compile(r"(?P<key>(?:--?|\+{1,2})?[A-Za-z][\w.-]{0,63}=)(?P<value>.*)", re.DOTALL)
_LIST = re.compile(r"(?P<start>\[?)(?P<entries>[^][]*)(?P<end>]?)")
_PLAIN = re.compile(
    r"[+-]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][+-]?\d{1,3})?|true|false|yes|no|on|off|none|null|auto|",
    re.IGNORECASE,
)
_KEYED = re.compile(rf"{_KEYED_MARK}[0-9a-f]{{8}}")
_SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".py", ".pt", ".pth", ".ckpt")
_DIGEST = re.compile(rf"{_MARK}k?[0-9a-f]{{8}}(?:{'|'.join(map(re.escape, _SUFFIXES))})?")


def digested_arguments(arguments: Sequence[str], key: str = "") -> tuple[str, ...]:
    """Return the arguments with each text as its digest, and the values of secrets as ``***``; digests stay.

    A list whose digests are too long for a record becomes one digest.

    Args:
        arguments: of a program.
        key: key of the store; empty for digests without a key.

    >>> digested_arguments(["--lr", "0.1", "--data", "/home/me/c4", "--sharding=FULL_SHARD", "--api-key", "hunter2"])
    ('--lr', '0.1', '--data', '~74c6b467', '--sharding=~b3f93369', '--api-key', '***')
    >>> digested_arguments(["--data", "/home/me/c4"], key="5eed")
    ('--data', '~k53882ca8')
    """
    words = []
    for previous, word in zip(("", *arguments), arguments, strict=False):
        is_secret = "=" not in previous and names_secret(previous)
        words.append(MASK if is_secret else word if _FLAG.fullmatch(word) else _bounded(word, key))
    return tuple(words)


def restored_arguments(arguments: Sequence[str], texts: Iterable[str], keys: Iterable[str] = ()) -> tuple[str, ...]:
    """Return recorded arguments with those of ``texts`` in the place of their digests; other digests stay.

    Args:
        arguments: as ``digested_arguments`` gives them.
        texts: that may stand in them.
        keys: of the store.

    >>> restored_arguments(["--sharding=~b3f93369", "~74c6b467"], ["FULL_SHARD", "NO_SHARD"])
    ('--sharding=FULL_SHARD', '~74c6b467')
    """
    known = {_digested(text, each): text for text in texts for each in {"", *keys}}
    return tuple(_with_values(word, lambda text: known.get(text, text)) for word in arguments)


def is_keyed(arguments: Iterable[str]) -> bool:
    """Return whether recorded arguments hold digests with a key.

    >>> is_keyed(["--data", "~k53882ca8"]), is_keyed(["--lr", "0.1", "~74c6b467"])
    (True, False)
    """
    return any(_KEYED.search(word) for word in arguments)


def text_digest(text: str, key: str) -> str:
    """Return the digest of 32 bits of a text, with the key of a store.

    >>> text_digest("/home/me/c4", "5eed")
    '53882ca8'
    """
    return blake2s(text.encode(errors="surrogatepass"), digest_size=4, key=key.encode()).hexdigest()


def _bounded(word: str, key: str) -> str:
    digested = _with_values(word, lambda text: _digested(text, key))
    if len(digested) <= MAX_TEXT:
        return digested
    found = _KEY.fullmatch(word)
    name, value = (found["key"], found["value"]) if found is not None else ("", word)
    return f"{name}{_KEYED_MARK if key else _MARK}{text_digest(value, key)}"


def _with_values(word: str, change: Callable[[str], str]) -> str:
    """Return a word with its value, or each entry of its list, changed; the name before ``=`` stays."""
    found = _KEY.fullmatch(word)
    if found is None:
        return _with_entries(word, change)
    key = found["key"]
    return f"{key}{MASK}" if names_secret(key) else key + _with_entries(found["value"], change)


def _with_entries(value: str, change: Callable[[str], str]) -> str:
    found = _LIST.fullmatch(value)
    if found is None:
        return change(value)
    entries = ",".join(map(change, found["entries"].split(",")))
    return f"{found['start']}{entries}{found['end']}"


def _digested(text: str, key: str) -> str:
    if _PLAIN.fullmatch(text) or _DIGEST.fullmatch(text) or text == MASK:
        return text
    suffix = PurePosixPath(text).suffix.lower()
    mark = _KEYED_MARK if key else _MARK
    return f"{mark}{text_digest(text, key)}{suffix if suffix in _SUFFIXES else ''}"
