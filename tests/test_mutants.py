"""The small faults of `make test-mutants`: what is drawn, what is left out, and what counts as found."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "mutants"))
from mutations import mutants  # noqa: E402 - it lies there
from sample import draw, equal_programs, files_testing  # noqa: E402 - likewise
from trials import forked  # noqa: E402 - likewise


def changes(folder: Path, source: str) -> list[tuple[str, ...]]:
    path = folder / "module.py"
    path.write_text(dedent(source))
    return [mutant.changed_lines for mutant in mutants(path, root=folder)]


@pytest.mark.parametrize(
    ("line", "faulty"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a - b", ["x = a + b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = -a", ["x = +a"]),
        ("x = a is None", ["x = a is not None"]),
        ("x = 0.5", ["x = 1.5"]),
        ("x = True", ["x = False"]),
        ("x = 'key'", ["x = 'XXkeyXX'"]),
        ("x = f(a, b)", []),
        ("x = f(a, key=b)", ["x = f(a, )"]),
        ("x = zip(a, b, strict=True)", []),
        ("x = 1000", []),
    ],
)
def test_faults_of_a_line(tmp_path: Path, line: str, faulty: list[str]) -> None:
    assert changes(tmp_path, line) == [(f"- {line}", f"+ {each}") for each in faulty]


def test_what_decides_nothing_is_left_alone(tmp_path: Path) -> None:
    source = '''
        """The number 1."""
        if TYPE_CHECKING:
            from somewhere import a
        __all__ = ["f"]
        KIND = Literal["a", "b"]

        @decorated(1)
        def f(x: "int | None"):
            """Return 2."""
            if x:
                raise ValueError(f"{x + 1} is" + "wrong")
            print(x + 1)
            return "words for people"
    '''
    assert changes(tmp_path, source) == []


def test_the_text_with_a_fault_is_that_of_the_changed_tree(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("""# größe \x0c here
class A:
    def f(self, x):
        if not (x < 1) and (x + 2) * -x == f(
            x,  # of several lines
            key=[x - 1, "é"],
        ):
            return x is None; y = (x or 3)
""")
    every = mutants(path, root=tmp_path)
    assert len(every) > 10
    for each in every:
        assert each.source == each.original.deep_replace(each.replaced, each.replacement).code


def test_a_name_stays_where_lines_move(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("class A:\n    def f(x):\n        return x + y\n")
    (before,) = mutants(path, root=tmp_path)
    path.write_text("import b\n\n\nclass A:\n    def f(x):\n        return x + y\n")
    (after,) = mutants(path, root=tmp_path)
    assert before.line == 3
    assert after.line == 6
    assert before.name == after.name == "module.py A.f\n- return x + y\n+ return x - y"


def test_a_seed_draws_the_same_and_no_more_than_there_are(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("".join(f"x{number} = a + {number}\n" for number in range(20)))
    every = mutants(path, root=tmp_path)
    once = draw(every, count=10, seed="1")
    assert [each.name for each in once] == [each.name for each in draw(every, count=10, seed="1")]
    assert once != draw(every, count=10, seed="2")
    assert len(draw(every, count=1000, seed="1")) == len(every) == 40


def test_each_equal_program_is_a_fault_that_could_be_drawn() -> None:
    listed = equal_programs()
    taken_away: dict[str, set[str]] = defaultdict(set)  # file and function -> lines that a fault there takes away
    for name in listed:
        place, *changed = name.split("\n")
        taken_away[place] |= {line[2:] for line in changed if line[0] == "-"}
    every = (
        mutant for file in {each.split(" ")[0] for each in taken_away} for mutant in mutants(ROOT / file, root=ROOT)
    )
    drawable = {mutant.name for mutant in every if taken_away[mutant.place] & mutant.statement_lines}
    assert set(listed) - drawable == set()
    assert all(listed.values())


@pytest.mark.parametrize(
    ("module", "files"),
    [
        (
            "tuner/unconfirmed.py",
            ["tests/tuner/test_unconfirmed.py"],
        ),
        (
            "advisor/study.py",
            [
                f"tests/advisor/test_study{name}.py"
                for name in ("", "_choice", "_layers", "_recommenders", "_uncertainty")
            ],
        ),
        ("searchers/random.py", ["tests/searchers/test_random.py", "tests/contracts/test_searchers.py"]),
    ],
)
def test_files_that_test_a_module(module: str, files: list[str]) -> None:
    assert files_testing(f"torchx_cubicml/{module}", root=ROOT) == files


def test_files_of_its_package_that_import_a_module_test_it(tmp_path: Path) -> None:
    for path, text in {
        "torchx_cubicml/pkg/a.py": "",
        "tests/pkg/test_b.py": "from torchx_cubicml.pkg.a import f",
        "tests/pkg/test_c.py": "from torchx_cubicml.pkg import a",
        "tests/pkg/test_d.py": "from torchx_cubicml.pkg import other",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert files_testing("torchx_cubicml/pkg/a.py", root=tmp_path) == ["tests/pkg/test_b.py", "tests/pkg/test_c.py"]


def test_a_fork_that_does_not_end_is_ended(tmp_path: Path) -> None:
    assert forked(lambda: time.sleep(3600) or 0, log=tmp_path / "log", limit_s=0.1) is None


def test_a_fork_ends_with_the_status_of_its_work(tmp_path: Path) -> None:
    assert forked(lambda: 3, log=tmp_path / "log", limit_s=600) == 3
    assert forked(lambda: 1 // 0, log=tmp_path / "log", limit_s=600) == 1


REPOSITORY = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        addopts = ["--import-mode=importlib"]
        markers = ["launch: none is"]
    """,
    "torchx_cubicml/__init__.py": "",
    "torchx_cubicml/pkg/__init__.py": "",
    "torchx_cubicml/pkg/sums.py": """
        def total(x, y):
            return x + y

        def unseen(x, y):
            return x * y

        def equal(x, y):
            return x - y
    """,
    "tests/pkg/test_sums.py": """
        from torchx_cubicml.pkg.sums import equal, total

        def test_total():
            assert total(3, 2) == 5
            assert equal(0, 0) == 0
    """,
    "tests/mutants/equal.toml": """
        [[equal]]
        file = "torchx_cubicml/pkg/sums.py"
        function = "equal"
        change = ["- return x - y", "+ return x + y"]
        reason = "it is called with zeros"
    """,
}


def test_found_and_unseen_faults_of_a_small_repository(tmp_path: Path) -> None:
    files = {path: dedent(text) for path, text in REPOSITORY.items()}
    for path in (ROOT / "tests" / "mutants").glob("*.py"):
        files[f"tests/mutants/{path.name}"] = path.read_text()
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    words = [sys.executable, "tests/mutants/sample.py", "pkg"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1, done.stderr
    assert "sums.py:6 unseen [" in done.stdout
    assert "- return x * y\n    + return x / y\n" in done.stdout
    assert "pkg         1 of 2 (50%)" in done.stdout
    assert {path: (tmp_path / path).read_text() for path in files} == files
