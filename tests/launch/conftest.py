from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def package_of_another_version(tmp_path: Path) -> Path:
    """Make a package of our name that reads another contract version, and return the folder to import it from."""
    package = tmp_path / "other" / "torchx_cubicml"
    modules = {
        "__init__": "",
        "recorder/__init__": "",
        "records/__init__": "",
        "records/contract": "CONTRACT_VERSION = 999\n",
    }
    for module, text in modules.items():
        (package / module).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{module}.py").write_text(text)
    return package.parent
