"""The results of scenarios as a table: date, versions, and how each scenario ended."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.schedulers.scenarios import Site

_LONGEST = 300


def tune_of_five(site: Site) -> dict[str, Any]:
    """Return the result of a tune of five launches at a site."""
    site.write_files()
    done = site.run(*site.tune("tune", ["--seconds", "1.2"], "--budget", "5 launches", "--repeats", "2"))
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def add_results_option(parser: pytest.Parser) -> None:
    """Declare the file of results."""
    parser.addoption("--results", default="", metavar="FILE", help="write how each scenario ended to FILE")


def collect_results(config: pytest.Config, heading: str) -> None:
    """Collect results if they are asked for."""
    if path := config.getoption("--results"):
        config.pluginmanager.register(_Results(Path(path), heading))


class _Results:
    def __init__(self, path: Path, heading: str) -> None:
        self._path, self._heading = path, heading
        self._lines: dict[str, dict[str, str]] = {}
        self._sites: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not report.failed and not report.skipped:
            return
        told = dict(report.user_properties)
        section = str(told.get("section", Path(report.nodeid.partition("::")[0]).stem.removeprefix("test_")))
        scenario = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        self._sites.setdefault(section, str(told.get("site", section)))
        if "site" in told:
            self._sites[section] = str(told["site"])
        why = str(told.get("ran", "")) if report.passed else _reason(report)
        self._lines.setdefault(section, {})[scenario] = f"{report.outcome}{f': {why}' if why else ''}"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            return
        sections = read_sections(self._path)
        for section, lines in self._lines.items():
            head = f"{section}: {self._sites[section]}, {torchx()}, {datetime.now(UTC).date()}"
            sections[section] = "\n".join([head, *(f"    {name}: {line}" for name, line in lines.items())])
        ordered = [sections[name] for name in sorted(sections)]
        self._path.write_text("\n\n".join([self._heading, *ordered]) + "\n")


def read_sections(path: Path) -> dict[str, str]:
    """Return the sections of a table by name."""
    paragraphs = path.read_text().strip().split("\n\n")[1:] if path.exists() else []
    return {text.partition(":")[0]: text for text in paragraphs}


def torchx() -> str:
    """Return name and version of the installed TorchX."""
    for name in ("torchx", "torchx-nightly"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "no TorchX"


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    text = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
    return re.sub(r"\s+", " ", text)[:_LONGEST]
