"""The wheel and the sdist of this checkout, built from a copy of what git knows of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
AT_THE_TOP = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")
PACKAGE, COMPONENTS = "torchx_cubicml", "components"


class Built(NamedTuple):
    """Paths of what was built."""

    wheel: Path
    sdist: Path


def known_files() -> list[str]:
    """Return the files of the checkout, with those not yet added, without the ignored and the deleted ones."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in set(listed) if name and ((ROOT / name).is_symlink() or (ROOT / name).exists()))


def build(folder: Path, *, isolated: bool) -> Built:
    """Run ``python -m build``: the sdist, and the wheel from it.

    Args:
        folder: empty one, for the copy and the results.
        isolated: whether the build gets its own environment, by network; otherwise it takes this one's setuptools.
    """
    source = folder / "source"
    for name in known_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    words = [] if isolated else ["--no-isolation"]
    command = [sys.executable, "-P", "-m", "build", *words, "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"python -m build failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (wheel,), (sdist,) = (sorted((folder / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    return Built(wheel, sdist)


def packaged_files() -> set[str]:
    """Return the files that belong in the package, by their paths in it; the link to the components is followed."""
    names = {name for name in known_files() if name.startswith((f"{PACKAGE}/", f"{COMPONENTS}/"))}
    names.discard(f"{PACKAGE}/{COMPONENTS}")
    return {name if name.startswith(PACKAGE) else f"{PACKAGE}/{name}" for name in names}


def in_wheel(wheel: Path) -> set[str]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def in_sdist(sdist: Path) -> set[str]:
    """Return the files of an sdist, by their paths in its only folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
