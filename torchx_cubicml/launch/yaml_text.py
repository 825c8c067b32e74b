"""One value of a YAML text set to another, all else byte for byte as it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from yaml.nodes import MappingNode, Node

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
