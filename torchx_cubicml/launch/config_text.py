"""Edits of config files as text (JSON, TOML, YAML): comments and order stay."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import MutableMapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from yaml.nodes import MappingNode, Node

    from torchx_cubicml.records.trial import Value


MAX_NODES = 100_000  # aliases of aliases can stand for more than any memory holds


def parse_yaml(text: str) -> object:
    """Return what a YAML text of one document says.

    Raises:
        ValueError: it is damaged, has several documents, tags of another language or too many values.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        _refuse_too_many(node)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()


def with_value_in_yaml(text: str, key: tuple[str, ...], value: object) -> str:
    r"""Return a YAML text with a value at a key, which is added where it is not there.

    Raises:
        ValueError: the place is shared by several keys, or cannot be found in the text.

    >>> with_value_in_yaml("a:\n  b: 1\n", ("a", "c"), "x")
    'a:\n  c: "x"\n  b: 1\n'
    """
    import yaml

    if text.startswith("\ufeff"):
        return "\ufeff" + with_value_in_yaml(text[1:], key, value)
    node = _composed(text)
    shared = _shared(node)
    for depth, name in enumerate(key[:-1]):
        pair = _pair(node, name)
        if pair is None:
            return _added(text, node, key[depth:], value)
        if not isinstance(pair[1], yaml.MappingNode) or id(pair[1]) in shared:
            why = "is an anchor or an alias, which several keys may share" if id(pair[1]) in shared else "holds no keys"
            raise ValueError(f"{'.'.join(key[: depth + 1])} {why}")
        node = pair[1]
    last = _pair(node, key[-1])
    if last is None:
        return _added(text, node, key[-1:], value)
    if id(last[1]) in shared:
        raise ValueError("it is an anchor or an alias, which several keys may share")
    return _replaced(text, last, value)


def _composed(text: str) -> MappingNode:
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)  # the one in Python counts characters
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("keys with values are wanted")
    return node


def _pair(node: MappingNode, name: str) -> tuple[Node, Node] | None:
    """Return key and value; of several alike the last, as readers do."""
    return next(((at, value) for at, value in reversed(node.value) if at.value == name), None)


def _replaced(text: str, pair: tuple[Node, Node], value: object) -> str:
    at, node = pair
    start, stop = node.start_mark.index, node.end_mark.index
    # A block collection ends where the next key begins; an empty value has no place of its own.
    blank = len(text[start:stop]) - len(text[start:stop].rstrip())
    if stop == start or node.start_mark.line > at.end_mark.line:
        start = text.index(":", at.end_mark.index) + 1
        return f"{text[:start]} {_spelled(value)}{text[max(stop - blank, start) :]}"
    return text[:start] + _spelled(value) + text[stop - blank :]


def _added(text: str, node: MappingNode, key: Sequence[str], value: object) -> str:
    written = value
    for name in reversed(key[1:]):
        written = {name: written}
    entry = f"{_name(key[0])}: {_spelled(written)}"
    if node.flow_style:
        inside = node.start_mark.index + 1
        return f"{text[:inside]}{entry}{', ' if node.value else ''}{text[inside:]}"
    first = node.value[0][0].start_mark
    return f"{text[: first.index]}{entry}\n{' ' * first.column}{text[first.index :]}"


def _spelled(value: object) -> str:
    """Return a value as YAML reads it in any dialect: JSON, floats with a point and a sign in their exponent."""
    if isinstance(value, float):
        digits, letter, exponent = repr(value).partition("e")
        point = "" if "." in digits else ".0"
        sign = "" if exponent.startswith("-") else "+"
        return f"{digits}{point}e{sign}{exponent.lstrip('+')}" if letter else digits + point
    if isinstance(value, list):
        return f"[{', '.join(map(_spelled, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_name(name)}: {_spelled(inner)}' for name, inner in value.items())}}}"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    # JSON says a character beyond 16 bits in two halves, which YAML does not put together.
    return "".join(json.dumps(char)[1:-1] if ord(char) < 0x10000 else f"\\U{ord(char):08x}" for char in text).join('""')


def _name(name: str) -> str:
    return name if name.isidentifier() and name.lower() not in _WORDS else _quoted(name)


_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _children(node: Node) -> list[Node]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _shared(root: Node) -> set[int]:
    """Return the nodes that stand at more than one place."""
    seen: set[int] = set()
    twice: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            twice.add(id(node))
            continue
        seen.add(id(node))
        waiting += _children(node)
    return twice


def _refuse_too_many(root: Node) -> None:
    """Refuse a text whose aliases stand for more values than fit, or for themselves."""
    counts: dict[int, int] = {}

    def count(node: Node, path: frozenset[int]) -> int:
        if id(node) in path:
            raise ValueError("an alias stands for itself")
        if id(node) not in counts:
            inside = path | {id(node)}
            counts[id(node)] = 1 + sum(count(child, inside) for child in _children(node))
        if counts[id(node)] > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values")
        return counts[id(node)]

    count(root, frozenset())


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
