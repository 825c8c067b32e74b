"""Lines that a program prints, as templates of text and fields, read from its source; nothing is run."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.launch.source_files import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PRINTS = re.compile(r"print|log|^(?:info|debug|warning|write|echo)$", re.IGNORECASE)
_PERCENT = re.compile(r"%(?:\(\w+\))?(?P<flags>[#0\- +]*)(?P<size>[\d*]*(?:\.[\d*]+)?)[hlL]?(?P<kind>[diufFeEgGrsa%])")


@dataclass(frozen=True, slots=True)
class Field:
    """Place of a value in a printed line.

    Args:
        spec: format specification, as of ``format``; empty where a value is printed as it is.
        source: expression of the value, as far as it is known.
    """

    spec: str = ""
    source: str = ""


Template: TypeAlias = "tuple[str | Field, ...]"
"""Texts and fields of one printed line, in their order."""


def printed_lines(tree: ast.Module) -> Iterator[tuple[int, Template]]:
    """Yield the line number and the template of each line that a call of ``print`` or of a logger prints."""
    assigned = _assigned_templates(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _PRINTS.search(_last_name(node.func)):
            continue
        for template in _templates(node, assigned):
            yield from ((node.lineno, line) for line in _lines(template))


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else dotted(function)


def _templates(call: ast.Call, assigned: Mapping[str, Sequence[Template]]) -> Iterator[Template]:
    for argument in call.args:
        if isinstance(argument, ast.Name):
            yield from assigned.get(argument.id, ())
    parts = [_template(argument) for argument in call.args]
    if not parts or not any(parts):
        return
    if "print" not in _last_name(call.func).lower() and isinstance(call.args[0], ast.Constant):
        text = call.args[0].value
        formatted = (_percent(text) or _braces(text)) if isinstance(text, str) and call.args[1:] else None
        yield formatted or parts[0] or ()
        return
    if "print" not in _last_name(call.func).lower():
        yield parts[0] or ()
        return
    given = [word.value.value for word in call.keywords if word.arg == "sep" and isinstance(word.value, ast.Constant)]
    separator = given[0] if given and isinstance(given[0], str) else " "
    line: list[str | Field] = []
    for argument, part in zip(call.args, parts, strict=True):
        line += [separator] if line else []
        line += part or (Field(source=ast.unparse(argument)),)
    yield tuple(line)


def _assigned_templates(tree: ast.Module) -> dict[str, list[Template]]:
    """Return the templates assigned to each name, or added to it."""
    found: dict[str, list[Template]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            template = _template(node.value)
            for target in targets:
                if template and isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(template)
    return found


def _template(node: ast.expr) -> Template | None:
    """Return the template of a text; ``None`` for any other expression."""
    if isinstance(node, ast.Constant):
        return (node.value,) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return tuple(_piece(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text = node.left.value if isinstance(node.left, ast.Constant) else None
        return _percent(text) if isinstance(text, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_template(side) for side in (node.left, node.right)]
        fields = [(Field(source=ast.unparse(side)),) for side in (node.left, node.right)]
        return (*(sides[0] or fields[0]), *(sides[1] or fields[1])) if any(sides) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = node.func.value.value if isinstance(node.func.value, ast.Constant) else None
        return _braces(text) if isinstance(text, str) else None
    return None


def _piece(value: ast.expr) -> str | Field:
    if isinstance(value, ast.FormattedValue):
        spec = _template(value.format_spec) if value.format_spec is not None else ()
        texts = [part for part in spec or () if isinstance(part, str)]
        return Field("".join(texts), ast.unparse(value.value))
    return str(value.value) if isinstance(value, ast.Constant) else Field()


def _percent(text: str) -> Template | None:
    """Return the template of a text with ``%`` fields; ``None`` without one."""
    parts: list[str | Field] = []
    end = 0
    for match in _PERCENT.finditer(text):
        parts.append(text[end : match.start()])
        end, kind = match.end(), match["kind"]
        fill = "<" if "-" in match["flags"] else ""
        spec = f"{fill}{match['size']}{'d' if kind in 'iu' else kind}" if kind not in "rsa" else fill + match["size"]
        parts.append("%" if kind == "%" else Field(spec))
    return (*parts, text[end:]) if any(isinstance(part, Field) for part in parts) else None


def _braces(text: str) -> Template | None:
    """Return the template of a text with ``{}`` fields; ``None`` without one."""
    try:
        parsed = list(Formatter().parse(text))
    except ValueError:
        return None
    parts: list[str | Field] = []
    for literal, name, spec, _ in parsed:
        parts += [literal, *([Field(spec or "", name)] if name is not None else [])]
    return tuple(parts) if any(isinstance(part, Field) for part in parts) else None


def _lines(template: Template) -> Iterator[Template]:
    """Split a template at line breaks, and join neighbouring texts."""
    line: list[str | Field] = []
    for part in template:
        pieces = [part] if isinstance(part, Field) else re.split(r"[\r\n]+", part)
        for index, piece in enumerate(pieces):
            if index:
                yield tuple(line)
                line = []
            if isinstance(piece, str) and line and isinstance(line[-1], str):
                line[-1] += piece
            elif piece:
                line.append(piece)
    yield tuple(line)
