"""Tests of a copy of the repository, run by forks of a process that has imported the large libraries already."""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mutations import Mutant

PACKAGE = "torchx_cubicml"
LARGE = "fsspec|hypothesis|numpy|rich|scipy|sklearn|threadpoolctl|tomlkit|torch|torchx|yaml"
IMPORT_OF_LARGE = re.compile(rf"^ *(?:from|import) ((?:{LARGE})\b[\w.]*)", re.MULTILINE)
IMPORTED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"  # hypothesis, before pytest starts
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov")
OPTIONS = ("-q", "-x", *PLUGINS, "-m", "not launch", "--no-header", "-W", IMPORTED)
MOST_MEMORY = 16 * 2**30  # bytes of address space: a fault may allocate without end
SHORTEST_LIMIT_S = 20.0
LIMIT_RATIO = 5.0  # of the time without a fault


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the tests do where there is no fault."""

    seconds: Mapping[str, float]  # of each test that passes
    lines: Mapping[str, Mapping[int, Sequence[str]]]  # file, line, the tests that run it; "" is an import or a fixture

    def of(self, mutant: Mutant, files: Sequence[str]) -> list[str]:
        """Return the tests for a fault: those of ``files`` that run its function, or else all that do.

        Those that run its line come first, quick ones before slow ones.
        """
        lines = self.lines.get(mutant.path, {})
        at_line = {test for line in mutant.statement for test in lines.get(line, ())}
        in_function = {test for line in mutant.scope for test in lines.get(line, ())}
        if "" in in_function:  # whoever imports it, or uses the fixture
            in_function = set(self.seconds)
        own = {test for test in self.seconds if test.split("::")[0] in files}
        tests = own & in_function or self.seconds.keys() & in_function or own  # run in another process, or at the top
        return sorted(tests, key=lambda test: (test not in at_line, self.seconds[test]))


class Copy:
    """A copy of the repository's files: faults are put into it, never into the working tree."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy what git tracks or would track."""
        self.root = folder / "copy"
        self._logs = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, names):
            if (root / name).exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.root / name, follow_symlinks=False)
        sources = [*(self.root / PACKAGE).rglob("*.py"), *(self.root / "tests").rglob("test_*.py")]
        for library in sorted({name for source in sources for name in IMPORT_OF_LARGE.findall(source.read_text())}):
            with suppress(ImportError):  # another release of torch has it
                importlib.import_module(library)
        gc.freeze()  # forks share these objects' memory for as long as nothing counts them

    def baseline(self, files: Sequence[str], *, modules: Collection[str]) -> Baseline:
        """Run all tests of some files without a fault, and note which of them run each line of some modules."""
        report = self._logs / "baseline.json"
        log = self._logs / "baseline.log"
        status = forked(lambda: _observe(self.root, files, modules, report), log=log, limit_s=3600)
        if status is None or not report.exists():
            sys.exit(f"the tests without a fault did not end: {log.read_text()[-2000:]}")
        found = json.loads(report.read_text())
        for test in found["failed"]:
            print(f"left out, it fails without a fault: {test}", flush=True)
        lines = {
            file: {int(line): [found["tests"][place] for place in places] for line, places in by_line.items()}
            for file, by_line in found["lines"].items()
        }
        return Baseline(seconds=found["seconds"], lines=lines)

    def finds(self, mutant: Mutant, tests: Sequence[str], baseline: Baseline) -> bool:
        """Whether one of some tests fails, or does not end, with the fault in place."""
        if not tests:
            return False
        path = self.root / mutant.path
        kept, stat = path.read_text(), path.stat()
        limit_s = SHORTEST_LIMIT_S + LIMIT_RATIO * sum(baseline.seconds[test] for test in tests)
        try:
            path.write_text(mutant.source)
            os.utime(path, (stat.st_atime, stat.st_mtime + 1))  # no stored bytecode is taken for its own
            log = self._logs / "mutant.log"
            return forked(lambda: _run(self.root, [], tests, None), log=log, limit_s=limit_s) != 0
        finally:
            path.write_text(kept)
            os.utime(path, (stat.st_atime, stat.st_mtime))


class _Chosen:
    """Plugin of pytest that keeps some tests, in the order they are given."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._places), key=self._place)

    def _place(self, item: pytest.Item) -> int:
        return self._places[item.nodeid]


class _Observer:
    """Plugin of pytest that notes the time, the outcome and the lines of each test."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self._measured = measured

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        self._test = item.nodeid
        self._measured.switch_context(item.nodeid)
        outcome = yield
        self._measured.switch_context("")
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[object]:
        if fixturedef.scope != "function":  # it serves other tests, too
            self._measured.switch_context("")
        outcome = yield
        self._measured.switch_context(self._test)
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)


def _observe(root: Path, files: Sequence[str], modules: Collection[str], report: Path) -> int:
    sources = [str(root / module) for module in modules]
    measured = coverage.Coverage(data_file=None, config_file=False, include=sources, messages=False)
    observer = _Observer(measured)
    measured.start()
    status = _run(root, [observer], files, report.parent)
    measured.stop()
    data = measured.get_data()
    tests = ["", *observer.seconds]
    places = {test: place for place, test in enumerate(tests)}
    lines = {
        str(Path(file).relative_to(root)): {
            line: [places[test] for test in found if test in places]
            for line, found in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    passed = {test: time_s for test, time_s in observer.seconds.items() if test not in observer.failed}
    report.write_text(
        json.dumps({"seconds": passed, "failed": sorted(observer.failed), "tests": tests, "lines": lines})
    )
    return status


def _run(root: Path, plugins: list[object], tests: Sequence[str], observed: Path | None) -> int:
    """Run tests in this process, a fork, as if it had been started in the copy."""
    os.chdir(root)
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = str(root)
    importlib.invalidate_caches()
    options = [each for each in OPTIONS if each != "-x" or not observed]
    if not observed:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        plugins = [_Chosen(tests)]
        tests = sorted({test.split("::")[0] for test in tests})
    return int(pytest.main([*options, f"--basetemp={root.parent / 'tmp'}", *tests], plugins=plugins))


def forked(work: Callable[[], int], *, log: Path, limit_s: float) -> int | None:
    """Return the status of a fork, or ``None`` where it had to be ended."""
    child = os.fork()
    if not child:
        _work_and_end(work, log)
    end = os.pidfd_open(child)
    try:
        if not select.select([end], [], [], limit_s)[0]:
            return None
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests started, too
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        os.close(end)


def _work_and_end(work: Callable[[], int], log: Path) -> NoReturn:
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        with log.open("w") as output:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        status = work()
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
