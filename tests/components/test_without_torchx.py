"""What needs TorchX says so where it is absent, with the cure."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["cli", "components.cubicml", "components.trainers.torchtitan"])
def test_a_module_that_needs_torchx_says_so(module: str) -> None:
    code = f"import sys; sys.modules['torchx'] = None; import torchx_cubicml.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: the ")
    assert "TorchX" in last
    assert "pip install 'torchx-cubicml[torchx]'" in last
