"""The wheel and the sdist hold the package and nothing else, and what the wheel installs works in another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.packages.build_packages import AT_THE_TOP, ROOT, Built, build, in_sdist, in_wheel, packaged_files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.shared_results import SharedResults

SCRIPT = "#!{python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
OTHERS = {"torchx": "torchx.cli.main", "torchrun": "torch.distributed.run"}
pytestmark = pytest.mark.launch


@pytest.fixture(scope="session")
def built(shared_results: SharedResults) -> Built:
    """Return the wheel and the sdist, built in this environment."""
    return shared_results.get("built packages", lambda folder: build(folder, isolated=False))


@pytest.fixture
def environment(built: Built, tmp_path: Path) -> Path:
    """Make an environment with the wheel installed, which sees the packages of this one."""
    folder = tmp_path / "environment"
    venv.create(folder)
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q"]
    subprocess.run([*command, "--no-deps", "--no-index", str(built.wheel)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    for name, module in OTHERS.items():
        script = folder / "bin" / name
        script.write_text(SCRIPT.format(python=folder / "bin" / "python", module=module))
        script.chmod(0o755)
    return folder


def test_the_wheel_holds_the_package_alone(built: Built) -> None:
    information = "torchx_cubicml-0.1.0.dist-info/"
    found = in_wheel(built.wheel)
    assert {name for name in found if not name.startswith(information)} == packaged_files()
    assert f"{information}licenses/LICENSE" in found


def test_the_sdist_holds_the_package_and_its_page(built: Built) -> None:
    made = {name for name in in_sdist(built.sdist) if name.startswith("torchx_cubicml.egg-info/")}
    assert in_sdist(built.sdist) - made == packaged_files() | set(AT_THE_TOP) | {"PKG-INFO", "setup.cfg"}


def test_no_dependency_names_a_distribution_of_torchx(built: Built) -> None:
    """Pip would install it over the files of the other one."""
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(name).decode().splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist: torchx")]
    assert needed
    assert all("extra ==" in line for line in needed)


def test_what_the_wheel_installs_works_in_another_folder(environment: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TORCHX", "PYTEST"))}
    command = [environment / "bin" / "python", ROOT / "tests" / "packages" / "use_installed.py"]
    done = subprocess.run(
        [*map(str, command), str(ROOT / "tests" / "jobs" / "train_small.py"), "--extras", "report,pandas,arrow,import"],
        cwd=work,
        env={**clean, "HOME": str(work), "TORCHX_CUBICML_CACHE": str(work / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
