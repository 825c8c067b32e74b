"""Small faults in a module's source, each made by an operator of mutmut, without those that change no decision."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal, operator_assignment, operator_string

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Arguments that say again what is so: zip's equal lengths, the type of an array, the encoding, subprocess's default.
SAID_AGAIN = m.Name("strict") | m.Name("dtype") | m.Name("encoding") | m.Name("check")
# These change no decision: types, imports, decorators (whether a record is frozen), texts for people.
LEFT_OUT = (
    m.Annotation()
    | m.Arg(keyword=SAID_AGAIN)
    | m.Decorator()
    | m.FormattedString()
    | m.Import()
    | m.ImportFrom()
    | m.Raise()
    | m.If(test=m.Name("TYPE_CHECKING"))
    | m.Expr(value=m.SimpleString() | m.ConcatenatedString())
    | m.Assign(targets=[m.AssignTarget(target=m.Name("__all__") | m.Name("__slots__"))])
    | m.Subscript(value=m.Name("Literal"))
    | m.Call(func=m.Name("print") | m.Name("TypeVar") | m.Name("NewType") | m.Attribute(attr=m.Name("print")))
)
# With None in place of a value, or with an argument less, nearly every line fails as soon as it runs: coverage says the
# same. A keyword argument that is left out is another matter: the default takes its place.
CRUDE = (operator_assignment, operator_arg_removal)
LARGEST_NUMBER = 1000  # one more is the same limit in practice


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One module with one fault in it."""

    path: str  # from the root of the repository
    line: int  # where the replaced code begins
    statement: range  # its lines
    scope: range  # lines of the body of the function around it; none at the top and in a class
    function: str  # dotted name inside the module; "" at the top
    original: cst.Module
    lines: tuple[str, ...]  # of its text, with their ends
    place_in_line: tuple[int, int]  # line, from 1, and column at which the replaced code begins, with its parentheses
    replaced: cst.CSTNode
    replacement: cst.CSTNode

    @cached_property
    def source(self) -> str:
        """The whole text of the module with the fault."""
        line, column = self.place_in_line
        before = "".join(self.lines[: line - 1]) + self.lines[line - 1][:column]
        after = self.lines[line - 1][column:] + "".join(self.lines[line:])
        old = self.original.code_for_node(self.replaced)
        if after.startswith(old):
            return f"{before}{self.original.code_for_node(self.replacement)}{after[len(old) :]}"
        changed = self.original.deep_replace(self.replaced, self.replacement)  # its lines are indented
        return changed.code if isinstance(changed, cst.Module) else ""

    @cached_property
    def changed_lines(self) -> tuple[str, ...]:
        """The lines that differ, each after "-" or "+", without indentation."""
        before = "".join(self.lines).splitlines()
        lines = difflib.unified_diff(before, self.source.splitlines(), n=0, lineterm="")
        return tuple(f"{line[0]} {line[1:].strip()}" for line in list(lines)[2:] if not line.startswith("@@"))

    @cached_property
    def identity(self) -> str:
        """A name for the command line: the file inside the package, and a digest."""
        return f"{self.path.partition('/')[2]}:{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @cached_property
    def name(self) -> str:
        """File, function and changed lines: it stays the same where other code of the file changes."""
        return "\n".join((self.place, *self.changed_lines))

    @property
    def place(self) -> str:
        """File and function."""
        return f"{self.path} {self.function}".strip()

    @property
    def statement_lines(self) -> set[str]:
        """The lines of its statement as they were, without indentation."""
        return {line.strip() for line in self.lines[self.statement.start - 1 : self.statement.stop - 1]}


def mutants(path: Path, *, root: Path) -> list[Mutant]:
    """Return every mutant of one file, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
    visitor = _Visitor(str(path.relative_to(root)))
    wrapper.visit(visitor)
    return visitor.found


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider)

    def __init__(self, path: str) -> None:
        super().__init__()
        self.found: list[Mutant] = []
        self._path = path
        self._names: list[str] = []
        self._scopes = [range(0)]
        self._statements: list[range] = []
        self._module = cst.Module([])
        self._text: tuple[str, ...] = ()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Module):
            self._module = node
            self._text = tuple(StringIO(node.code))
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._names.append(node.name.value)
            self._scopes.append(self._lines(node.body) if isinstance(node, cst.FunctionDef) else range(0))
        elif isinstance(node, cst.SimpleStatementLine):
            self._statements.append(self._lines(node))
        if m.matches(node, LEFT_OUT):
            return False
        for replacement in _replacements(node):
            lines = self._lines(node)
            begin = self.get_metadata(WhitespaceInclusivePositionProvider, node).start
            mutant = Mutant(
                path=self._path,
                line=lines.start,
                statement=self._statements[-1] if self._statements else lines,
                scope=self._scopes[-1],
                function=".".join(self._names),
                original=self._module,
                lines=self._text,
                place_in_line=(begin.line, begin.column),
                replaced=node,
                replacement=replacement,
            )
            self.found.append(mutant)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, (cst.FunctionDef, cst.ClassDef)):
            self._names.pop()
            self._scopes.pop()
        elif isinstance(original_node, cst.SimpleStatementLine):
            self._statements.pop()

    def _lines(self, node: cst.CSTNode) -> range:
        position = self.get_metadata(PositionProvider, node)
        return range(position.start.line, position.end.line + 1)


def _replacements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, (cst.Integer, cst.Float)) and node.evaluated_value >= LARGEST_NUMBER:
        return
    if isinstance(node, cst.SimpleString) and " " in node.value:  # for people
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and operator not in CRUDE:
            # The faults of a text after the first differ from it in upper and lower case only.
            yield from islice(operator(node), 1 if operator is operator_string else None)
    if isinstance(node, cst.Call) and len(node.args) > 1:
        for place, each in enumerate(node.args):
            if each.keyword and not m.matches(each.keyword, SAID_AGAIN):
                yield node.with_changes(args=[*node.args[:place], *node.args[place + 1 :]])
