"""Text edits of config files (JSON, TOML, YAML) that keep comments and key order."""

from __future__ import annotations

import json
import math
from collections.abc import MutableMapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.user_files import MAX_DEPTH, parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from yaml.nodes import MappingNode, Node

    from torchx_cubicml.records.values import Value


_MOST_DIGITS = 4096  # of a whole number; the parser's time grows with the square of its parts, as in 1:30:00
MAX_NODES = 100_000  # nested aliases can expand to more values than any memory holds


def parse_yaml(text: str) -> object:
    """Return the content of a YAML text with one document.

    Raises:
        ValueError: the text is damaged, or has several documents, tags of another language or too many values.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        _check_size(node)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()


def with_value_in_yaml(text: str, key: tuple[str, ...], value: object) -> str:
    r"""Return a YAML text with a value set at a key, which is added if absent.

    Raises:
        ValueError: several keys share the value, or the key cannot be found in the text.

    >>> with_value_in_yaml("a:\n  b: 1\n", ("a", "c"), "x")
    'a:\n  c: "x"\n  b: 1\n'
    """
    import yaml

    node = _compose(text)
    shared = _shared(node)
    for depth, name in enumerate(key[:-1]):
        pair = _find_pair(node, name)
        if pair is None:
            return _with_new_key(text, node, key[depth:], value)
        if not isinstance(pair[1], yaml.MappingNode) or id(pair[1]) in shared:
            why = "is an anchor or an alias, which several keys may share" if id(pair[1]) in shared else "has no keys"
            raise ValueError(f"{'.'.join(key[: depth + 1])} {why}")
        node = pair[1]
    last = _find_pair(node, key[-1])
    if last is None:
        return _with_new_key(text, node, key[-1:], value)
    if id(last[1]) in shared:
        raise ValueError("its value is an anchor or an alias, which several keys may share")
    return _with_new_value(text, last, value)


def _compose(text: str) -> MappingNode:
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)  # the marks of the pure-Python loader count characters
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("its top level must be a table of keys")
    return node


def _find_pair(node: MappingNode, name: str) -> tuple[Node, Node] | None:
    """Return the nodes of a key and its value; the last one of a repeated key, as YAML readers do."""
    return next(((key_node, value) for key_node, value in reversed(node.value) if key_node.value == name), None)


def _with_new_value(text: str, pair: tuple[Node, Node], value: object) -> str:
    key_node, node = pair
    start, stop = node.start_mark.index, node.end_mark.index
    # A block collection ends where the next key begins. An empty value has no position of its own.
    blank = len(text[start:stop]) - len(text[start:stop].rstrip())
    if stop == start or node.start_mark.line > key_node.end_mark.line:
        start = text.index(":", key_node.end_mark.index) + 1
        return f"{text[:start]} {_yaml_text(value)}{text[max(stop - blank, start) :]}"
    return text[:start] + _yaml_text(value) + text[stop - blank :]


def _with_new_key(text: str, node: MappingNode, key: Sequence[str], value: object) -> str:
    written = value
    for name in reversed(key[1:]):
        written = {name: written}
    entry = f"{_key_text(key[0])}: {_yaml_text(written)}"
    if node.flow_style:
        inside = node.start_mark.index + 1
        return f"{text[:inside]}{entry}{', ' if node.value else ''}{text[inside:]}"
    first = node.value[0][0].start_mark
    return f"{text[: first.index]}{entry}\n{' ' * first.column}{text[first.index :]}"


def _yaml_text(value: object) -> str:
    """Return a value as text for any YAML dialect: JSON, floats with a point and a sign in their exponent."""
    if isinstance(value, float):
        digits, letter, exponent = repr(value).partition("e")
        point = "" if "." in digits else ".0"
        sign = "" if exponent.startswith("-") else "+"
        return f"{digits}{point}e{sign}{exponent.lstrip('+')}" if letter else digits + point
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key_text(name)}: {_yaml_text(inner)}' for name, inner in value.items())}}}"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    # JSON escapes a character beyond 16 bits as two surrogates, which YAML does not join.
    return "".join(json.dumps(char)[1:-1] if ord(char) < 0x10000 else f"\\U{ord(char):08x}" for char in text).join('""')


def _key_text(name: str) -> str:
    return name if name.isidentifier() and name.lower() not in _RESERVED_WORDS else _quoted(name)


_RESERVED_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _children(node: Node) -> list[Node]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _shared(root: Node) -> set[int]:
    """Return the ids of the nodes that occur more than once."""
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


def _check_size(root: Node) -> None:
    """Raise if aliases expand to more than ``MAX_NODES`` values, or refer to themselves."""
    counts: dict[int, int] = {}

    def count(node: Node, path: frozenset[int]) -> int:
        if node.tag.endswith(":int") and len(node.value) > _MOST_DIGITS:
            raise ValueError(f"a number has more than {_MOST_DIGITS} digits")
        if id(node) in path:
            raise ValueError("an alias refers to itself")
        if id(node) not in counts:
            inside = path | {id(node)}
            counts[id(node)] = 1 + sum(count(child, inside) for child in _children(node))
        if counts[id(node)] > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values")
        return counts[id(node)]

    count(root, frozenset())


Document: TypeAlias = dict[str, object]
Key: TypeAlias = tuple[str, ...]

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
MISSING = object()
"""Result of ``value_at`` for a key that is not in the document."""


def is_document(path: str) -> bool:
    """Return whether the suffix of a path names a supported format."""
    return PurePosixPath(path).suffix.lower() in SUFFIXES


def parse_document(text: str, *, path: str) -> Document:
    """Return the content of a config file.

    Args:
        text: content of the file.
        path: path of the file, for messages; its suffix selects the format.

    Raises:
        LaunchError: the format is not supported, or the text is damaged or no table of keys.

    >>> parse_document("a: {b: 1}", path="config.yaml")
    {'a': {'b': 1}}
    """
    try:
        document = _parser(path)(text)
        _check_depth(document)
    except (ValueError, RecursionError, ArithmeticError, MemoryError) as error:
        why = " ".join(str(error).split()) or "it does not fit into memory"
        raise LaunchError(f"{path} cannot be read: {why:.200}") from None
    if not isinstance(document, dict):
        raise LaunchError(f"{path} cannot be read: its top level must be a table of keys")
    return document


def _check_depth(value: object, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} tables and lists are inside one another")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(inner, depth + 1)


def flat_keys(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys of nested tables, with dots between their names, and their values; an empty table is a value."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from flat_keys(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value


def value_at(document: Document, key: Key) -> object:
    """Return the value at a key, outermost name first; ``MISSING`` if absent.

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
    """Return the text of a file with other values at some keys; missing keys are added.

    Args:
        text: content of the file.
        changes: key, outermost name first -> value.
        path: path of the file; its suffix selects the format.

    Raises:
        LaunchError: the file cannot be read, or a value cannot be set without changing others.

    >>> with_values("a: 1 # one", {("a",): 2}, path="config.yaml")
    'a: 2 # one'
    """
    expected = parse_document(text, path=path)
    for key, value in changes.items():
        plain = list(value) if isinstance(value, tuple) else value
        expected = _set(expected, key, plain, path)
        try:
            text = _writer(path)(text, key, plain)
        except (ValueError, LookupError) as error:
            why = " ".join(str(error).split())
            raise LaunchError(f"{path}: {'.'.join(key)} cannot be set: {why:.200}") from None
        if not alike(parse_document(text, path=path), expected):
            raise LaunchError(f"{path}: {'.'.join(key)} cannot be set without changing other values")
    return text


def alike(one: object, other: object) -> bool:
    """Return whether two document values are equal, with the same types throughout.

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
    """Return a copy of a document with a value at a key; tables shared with other keys are not modified."""
    name, *rest = key
    inner = document.get(name, {})
    if rest and not isinstance(inner, dict):
        raise LaunchError(f"{path}: {name} must be a table to set {'.'.join(key)}, but it is a value")
    after = _set(inner, tuple(rest), value, path) if rest and isinstance(inner, dict) else value
    return {**document, name: after}


def _parser(path: str) -> Callable[[str], object]:
    suffix = PurePosixPath(path).suffix.lower()
    parsers: dict[str, Callable[[str], object]] = {
        ".json": json.loads,
        ".toml": parse_toml,
        ".yaml": parse_yaml,
        ".yml": parse_yaml,
    }
    if suffix not in parsers:
        raise LaunchError(f"unsupported format; choose from {', '.join(SUFFIXES)}")
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
                raise ValueError(f"{name} is not a table")
            here = within
        here[key[-1]] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError) as error:
        raise ValueError(str(error)) from None
