"""The scenarios with the launcher that `--launcher` names."""

from __future__ import annotations

from tests.schedulers.scenarios import Scenarios


class TestLauncher(Scenarios):
    """The launcher."""
