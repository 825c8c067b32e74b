"""Parts of a program's file that are compared on their own: its constants and the defaults of its flags, and its code.

Comments, docstrings, formatting and calls that only print or log are left out: they change no work.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CODE = ""
"""Name of the code."""

_MAX_CHARACTERS = 200_000  # a longer file is compared as a text
_MOST_CONSTANTS = 128  # others count as code
_LOGGERS = frozenset({"logger", "logging", "log", "LOG", "LOGGER", "wandb", "mlflow", "writer", "tqdm", "warnings"})


def program_parts(text: str) -> dict[str, str]:
    """Return the parts of a Python file by name; a file that is no Python is its own code.

    Returns:
        ``NAME`` or ``Class.NAME``: literal that the file assigns to a name of a module or class. ``--flag``: call that
        adds the flag, with its default. Empty name (``CODE``): all else.

    >>> program_parts('''# A comment
    ... n_layer = 12
    ... parser.add_argument("--lr", default=0.1)
    ... print("ready")
    ... train(n_layer)
    ... ''')
    {'n_layer': '12', '--lr': "parser.add_argument('--lr', default=0.1)", '': 'train(n_layer)'}
    """
    if len(text) > _MAX_CHARACTERS:
        return {CODE: text}
    try:
        tree = ast.parse(text)
        constants = dict(list(_constants(tree.body, ""))[:_MOST_CONSTANTS])
        code = _Code(set(constants)).visit(tree)
        return {**constants, CODE: "\n".join(line for line in ast.unparse(code).splitlines() if line.strip() != "pass")}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {CODE: text}


def _constants(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for statement in body:
        if (name := _assigned(statement)) is not None:
            yield f"{prefix}{name}", ast.unparse(statement.value)  # type: ignore[attr-defined]  # _assigned checks it
        elif isinstance(statement, ast.ClassDef):
            yield from _constants(statement.body, f"{prefix}{statement.name}.")
    if not prefix:
        for node in (inner for statement in body for inner in ast.walk(statement)):
            if (flag := _flag(node)) is not None:
                yield flag, ast.unparse(node)


def _assigned(statement: ast.stmt) -> str | None:
    """Return the name to which a statement assigns a literal."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return None
    if not isinstance(target, ast.Name) or statement.value is None:
        return None
    try:
        ast.literal_eval(statement.value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    return target.id


def _flag(node: ast.AST) -> str | None:
    """Return the long flag that a call adds to a parser."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return None
    names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return next((f"--{name[2:].replace('-', '_')}" for name in names if name.startswith("--")), None)


class _Code(ast.NodeTransformer):
    """Remover of constants, flags, docstrings, and calls that print or log.

    Args:
        names: names of the constants and flags that are compared on their own.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._prefix = ""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = self._without_constants(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        before, self._prefix = self._prefix, f"{self._prefix}{node.name}."
        node.body = self._without_constants(node.body)
        visited = self.generic_visit(node)
        self._prefix = before
        return visited

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        value = node.value
        if isinstance(value, ast.Constant) or _only_logs(value):
            return ast.copy_location(ast.Pass(), node)
        if _flag(value) in self._names:
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def _without_constants(self, body: list[ast.stmt]) -> list[ast.stmt]:
        kept = [each for each in body if f"{self._prefix}{_assigned(each)}" not in self._names]
        return kept or [ast.Pass()]


def _only_logs(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return function.id == "print"
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in _LOGGERS and isinstance(node.func, ast.Attribute)
