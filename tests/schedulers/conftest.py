"""A tune that two scenarios share, and the file of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.scenario_results import add_results_option, collect_results, tune_of_five

if TYPE_CHECKING:
    from tests.schedulers.scenarios import Site

HEADING = "Five scenarios on real schedulers, run by scripts/test-schedulers; Linux, x86_64, CPU"


@pytest.fixture(scope="module")
def tuned(site: Site) -> dict[str, Any]:
    """Return the result of a tune of five launches on the scheduler of a file."""
    return tune_of_five(site)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the file of results."""
    add_results_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Collect results if they are asked for."""
    collect_results(config, HEADING)
