from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from torchx_cubicml.recorder.steps.torch_hooks import on_every_step, once_torch_is_imported

if TYPE_CHECKING:
    from pathlib import Path

WAITING = """
import sys
from torchx_cubicml.recorder.steps.torch_hooks import once_torch_is_imported
once_torch_is_imported(lambda: print("complete", sys.modules["torch"].ready))
assert "torch" not in sys.modules
"""


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WAITING + program],
        env={"PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("ready = False\nfrom torch import nn\nready = True\n")
    (tmp_path / "torch" / "nn.py").write_text("import torch\n")
    return tmp_path


def test_torch_is_complete_when_its_listener_is_called(folder: Path) -> None:
    left = (
        "; import sys; print(type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__, sys.meta_path)"
    )
    printed = run("import torch.nn" + left, folder)
    assert printed.startswith("complete True\nSourceFileLoader True ")
    assert "TorchFinder" not in printed


def test_a_question_for_torch_is_no_import(folder: Path) -> None:
    """Libraries ask whether torch is there before they import it."""
    ask = "import importlib.util as u; spec = u.find_spec('torch'); print(spec.loader.get_filename('torch')[-8:])\n"
    assert run(f"{ask}{ask}import torch", folder) == "init__.py\ninit__.py\ncomplete True\n".replace(
        "init__.py", "nit__.py"
    )
    failing = "try:\n    import torch\nexcept ImportError:\n    pass\n"
    (folder / "torch" / "__init__.py").write_text(
        "import sys\nif len(sys.argv) == 1:\n    sys.argv.append(1)\n    import no\nready = True\n"
    )
    assert run(f"{failing}import torch", folder) == "complete True\n"


def test_a_failing_torch_raises_its_own_error(folder: Path) -> None:
    (folder / "torch" / "__init__.py").write_text("import no_such_library\n")
    assert "No module named 'no_such_library'" in run("import torch", folder)


def test_a_missing_torch_raises_its_own_error(folder: Path) -> None:
    (folder / "torch" / "__init__.py").unlink()
    (folder / "torch" / "nn.py").unlink()
    (folder / "torch").rmdir()
    printed = run("sys.path[:] = [entry for entry in sys.path if 'packages' not in entry]\nimport torch", folder)
    assert printed.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"


def test_a_loaded_torch_calls_its_listener_at_once() -> None:
    calls: list[str] = []
    once_torch_is_imported(lambda: calls.append("now"))
    assert calls == ["now"]


def test_every_optimizer_reports_its_steps() -> None:
    stepped: list[object] = []
    handle = on_every_step(lambda optimizer, args, kwargs: stepped.append(optimizer))
    layer = torch.nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1), torch.optim.AdamW(layer.parameters())]
    try:
        for optimizer in optimizers:
            optimizer.step()
    finally:
        handle.remove()
    optimizers[0].step()
    assert stepped == optimizers
