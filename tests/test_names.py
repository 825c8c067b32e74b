"""Names and texts of the package and its benchmarks, as a stranger meets them."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "torchx_cubicml"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "components"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
QUESTION = re.compile(r"(What|Which|Who|Whose|How|Where|When|Why|Whether)\b")
MOST_RECURRING = 10


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def module_names() -> frozenset[str]:
    return frozenset(map(dotted, MODULES))


def imported(path: Path) -> set[str]:
    """Every module of the package that a module imports: at the top, inside functions and for types alone."""
    names = module_names()
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in names} - {dotted(path)}


def test_no_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(dotted(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_few_file_names_recur() -> None:
    counted = Counter(path.name for path in MODULES if path.name != "__init__.py")
    assert len([name for name, count in counted.items() if count > 1]) <= MOST_RECURRING


def test_no_docstring_begins_with_a_question() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = {
        (dotted(path), getattr(node, "name", "module")): ast.get_docstring(node) or ""
        for path in [*MODULES, *BENCHMARKS]
        for node in ast.walk(tree(path))
        if isinstance(node, documented)
    }
    assert {name: text for name, text in texts.items() if QUESTION.match(text)} == {}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """A package's ``__init__`` counts as what it exports: its modules import each other, never it."""
    graph = {dotted(path): imported(path) for path in MODULES}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def documented_arguments(text: str) -> set[str]:
    """Return the names of an Args section."""
    _, _, section = text.partition("\nArgs:\n")
    lines = section.split("\n\n")[0].splitlines()
    return {found[1] for line in lines if (found := re.match(r"    (\w+): ", line))}


def accepted_arguments(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class and the parameters of its ``__init__``."""
    names = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            names |= {each.arg for each in [*item.args.args, *item.args.kwonlyargs]}
    return names


def test_the_documented_arguments_of_a_class_are_its_own() -> None:
    stale = {
        (dotted(path), node.name): documented_arguments(ast.get_docstring(node) or "") - accepted_arguments(node)
        for path in [*MODULES, *BENCHMARKS]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and not node.bases
    }
    assert {name: names for name, names in stale.items() if names} == {}
