from __future__ import annotations

from contextlib import chdir
from typing import TYPE_CHECKING

import pytest
from torchx.cli.main import main

from tests.browser.chromium import Browser, chromium
from tests.browser.stores import CASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium is installed")
    with Browser(path, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the function that gives the report of a store by its name; each is made once."""
    made: dict[str, Path] = {}

    def page(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            with chdir(folder):
                words = CASES[name].fill(folder / "store")
                main(["cubicml", "report", "--store", str(folder / "store"), *words])
            made[name] = folder / "report.html"
        return made[name]

    return page
