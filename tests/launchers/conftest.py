"""The launcher whose scenarios run, a tune that two of them share, and the file of results."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import next_free_port
from tests.launchers.launchers import BIN, LAUNCHERS
from tests.scenario_results import add_results_option, collect_results, tune_of_five

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.launchers.launchers import Launcher

HEADING = "Five scenarios with each launcher, run by scripts/test-launchers; Linux, x86_64, CPU"


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """Return the launcher that the option names."""
    port = next_free_port()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="cubicml-launcher-") as folder:
        patch.setenv("PATH", str(BIN), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HOME", folder)
        with LAUNCHERS[request.config.getoption("--launcher")](Path(folder), port) as launcher:
            yield launcher


@pytest.fixture(scope="module")
def tuned(site: Launcher) -> dict[str, Any]:
    """Return the result of a tune of five launches with the launcher."""
    return tune_of_five(site)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the launcher and the file of results."""
    add_results_option(parser)
    parser.addoption("--launcher", choices=sorted(LAUNCHERS), default="cubicrun", help="run the scenarios with it")


def pytest_configure(config: pytest.Config) -> None:
    """Collect results if they are asked for."""
    collect_results(config, HEADING)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name the section of each result."""
    for item in items:
        item.user_properties.append(("section", config.getoption("--launcher")))
