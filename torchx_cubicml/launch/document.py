"""Config files as text: JSON, YAML or TOML in, the same text with other values at some keys out.

What is not changed stays equal, value by value and type by type: each change is read back before it counts. In YAML and
TOML it stays equal byte for byte, so that readers of another dialect see what they saw before.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import MutableMapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.yaml_text import parse_yaml, with_value_in_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torchx_cubicml.records.trial import Value

Document: TypeAlias = dict[str, object]
Key: TypeAlias = tuple[str, ...]

MAX_BYTES = 1024 * 1024  # of a file
SUFFIXES = (".json", ".yaml", ".yml", ".toml")
MISSING = object()
"""What stands at a key that is not in a document."""


def is_document(path: str) -> bool:
    """Whether a path names a file that can be read here, by its ending."""
    return PurePosixPath(path).suffix.lower() in SUFFIXES


def parse_document(text: str, *, path: str) -> Document:
    """Return what a file says.

    Args:
        text: of the file.
        path: its ending tells the language; it names the file in messages.

    Raises:
        LaunchError: it is of another language, damaged, or no table of keys.

    >>> parse_document("a: {b: 1}", path="config.yaml")
    {'a': {'b': 1}}
    """
    if len(text) > MAX_BYTES:
        raise LaunchError(f"{path} has more than the {MAX_BYTES} characters that are read")
    try:
        document = _parser(path)(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        why = " ".join(str(error).split()) or "too deeply nested"
        raise LaunchError(f"{path} cannot be read: {why:.200}") from None
    if not isinstance(document, dict):
        raise LaunchError(f"{path} cannot be read: keys with values are wanted")
    return document


def value_at(document: Document, key: Key) -> object:
    """Return what stands at a key, outermost name first; ``MISSING`` where it is not there.

    >>> value_at({"a": {"b": 1}}, ("a", "b")), value_at({"a": 1}, ("a", "b")) is MISSING
    (1, True)
    """
    here: object = document
    for name in key:
        if not isinstance(here, dict) or name not in here:
            return MISSING
        here = here[name]
    return here


def with_values(text: str, changes: Mapping[Key, Value], *, path: str) -> str:
    """Return the text of a file with other values at some keys; keys that are not there are added.

    Args:
        text: of the file.
        changes: key, outermost name first -> value.
        path: of the file.

    Raises:
        LaunchError: the file cannot be read, or a value cannot be set so that all others stay as they are.

    >>> with_values("a: 1 # one", {("a",): 2}, path="config.yaml")
    'a: 2 # one'
    """
    wanted = parse_document(text, path=path)
    for key, value in changes.items():
        plain = list(value) if isinstance(value, tuple) else value
        wanted = _set(wanted, key, plain, path)
        try:
            text = _writer(path)(text, key, plain)
        except (ValueError, LookupError) as error:
            why = " ".join(str(error).split())
            raise LaunchError(f"{path}: {'.'.join(key)} cannot be set: {why:.200}") from None
        if not alike(parse_document(text, path=path), wanted):
            raise LaunchError(f"{path}: {'.'.join(key)} cannot be set without a change to other values")
    return text


def alike(one: object, other: object) -> bool:
    """Whether two values of documents are equal and of the same types throughout.

    >>> alike({"a": 1}, {"a": 1.0}), alike([True], [True])
    (False, True)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return _names(one) == _names(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other


def _names(document: Mapping[object, object]) -> set[tuple[type, object]]:
    return {(type(name), name) for name in document}


def _set(document: Document, key: Key, value: object, path: str) -> Document:
    """Return a document with a value at a key; what several keys share is left as it is for the others."""
    name, *rest = key
    inner = document.get(name, {})
    if rest and not isinstance(inner, dict):
        raise LaunchError(f"{path}: {name} holds a value where keys are wanted, {'.'.join(key)}")
    after = _set(inner, tuple(rest), value, path) if rest and isinstance(inner, dict) else value
    return {**document, name: after}


def _parser(path: str) -> Callable[[str], object]:
    suffix = PurePosixPath(path).suffix.lower()
    parsers: dict[str, Callable[[str], object]] = {
        ".json": json.loads,
        ".toml": tomllib.loads,
        ".yaml": parse_yaml,
        ".yml": parse_yaml,
    }
    if suffix not in parsers:
        raise LaunchError(f"{path} is no file that can be read here; legal endings are {', '.join(SUFFIXES)}")
    return parsers[suffix]


def _writer(path: str) -> Callable[[str, Key, object], str]:
    return {".json": _in_json, ".toml": _in_toml}.get(PurePosixPath(path).suffix.lower(), with_value_in_yaml)


def _in_json(text: str, key: Key, value: object) -> str:
    return json.dumps(_set(json.loads(text), key, value, "the file"), indent=2)


def _in_toml(text: str, key: Key, value: object) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    document = tomlkit.parse(text)
    try:
        here: MutableMapping[str, object] = document
        for name in key[:-1]:
            within = here.setdefault(name, tomlkit.table())
            if not isinstance(within, MutableMapping):
                raise ValueError(f"{name} is no table")
            here = within
        here[key[-1]] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError) as error:
        raise ValueError(str(error)) from None
