from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_results import SharedResults


if find_spec("hypothesis"):  # not where other libraries' trainers are tested
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.conjecture import providers

    # No time counts: a busy machine fails no test. A test that limits its time measures that of its own process.
    # Each setting is said here: where the variable CI is set, hypothesis has other defaults (derandomize=True).
    settings.register_profile(
        "random",
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("repeatable", parent=settings.get_profile("random"), derandomize=True)
    settings.load_profile("repeatable")
    # Hypothesis draws constants of the modules that are loaded, too: cases would change with the tests that ran before.
    providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]

# Variables by which a launch would find itself in a job of a cluster, where the tests themselves run in one.
for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
    os.environ.pop(name, None)

# Below those that the kernel hands out: nobody is given one before it is taken.
PORTS = count(10_000 + 97 * os.getpid() % 20_000)


LONGEST = (
    "test_generated.py",
    "test_cluster.py",
    "test_mutants.py",
    "test_session.py",
    "test_sharing.py",
    "test_endings.py",
)
"""Files of the tests that take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first; the processes that share the tests then end together."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """Leave all that was loaded out of searches among live objects, which would take most of the time of a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def free_port() -> int:
    """Return a port that nobody listens at."""
    return next_free_port()


def next_free_port() -> int:
    """Return the next port that nobody listens at."""
    for port in PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("ports never end")


@pytest.fixture(scope="session", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Launches of the tests keep things in a folder of the tests, and take as long as a busy machine lets them."""
    changes = {
        "TORCHX_CUBICML_CACHE": str(tmp_path_factory.mktemp("cache")),
        "TORCHX_CUBICML_THINK_DEADLINE_S": "60",
        "TORCHX_CUBICML_DECISION_DEADLINE_S": "120",
        "TORCHX_CUBICML_WRITE_DEADLINE_S": "60",
        "COLUMNS": "1000",  # no sentence is broken over lines, except in the tests of that
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def _own_variables() -> Iterator[None]:
    """Take back what a library has set in a test, such as ``OMP_NUM_THREADS``, so that tests have no order."""
    before = {*os.environ}
    yield
    faulthandler.unregister(signal.SIGTERM)  # a recorder of the test listens; a pool could not end its workers
    for name in os.environ.keys() - before:
        if not name.startswith("KMP_"):  # OpenMP reads these while it runs
            del os.environ[name]


@pytest.fixture(scope="session")
def shared_results(tmp_path_factory: pytest.TempPathFactory) -> SharedResults:
    """Return the results that are made once in this run, whichever process needs them."""
    base = tmp_path_factory.getbasetemp()  # of this process, if there are several
    from tests.shared_results import SharedResults  # a test loads this file where no folder `tests` can be imported

    return SharedResults((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared")
