"""Virtual environment in a new folder: installs there, compares the files of TorchX, and uses torchx-cubicml."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from importlib.metadata import Distribution, distributions
from pathlib import Path

from tests.packages.build_packages import ROOT

TORCHX = ("torchx", "torchx-nightly")
USE, SCRIPT = ROOT / "tests" / "packages" / "use_installed.py", ROOT / "tests" / "jobs" / "train_small.py"
INSTALL_LIMIT_S, USE_LIMIT_S = 3600, 1800


class CleanEnvironmentError(Exception):
    """A command that failed, or a file that another distribution has replaced."""


class CleanEnvironment:
    """Virtual environment that holds pip alone at first.

    Args:
        folder: does not exist yet; the environment and the files of its uses go there.
        python: interpreter that makes it.
        constraints: file of versions for each installation.
    """

    def __init__(self, folder: Path, python: Path, *, constraints: Path | None) -> None:
        self._python, self._folder, self._uses = folder / "bin" / "python", folder, 0
        self._constraints = [] if constraints is None else ["-c", str(constraints)]
        self._run([str(python), "-m", "venv", str(folder)], cwd=folder.parent, limit_s=INSTALL_LIMIT_S)
        (self._site,) = folder.glob("lib/python*/site-packages")

    def install(self, *words: str) -> None:
        """Install requirements by pip."""
        command = [str(self._python), "-m", "pip", "install", "-q", *self._constraints, *words]
        self._run(command, cwd=self._folder, limit_s=INSTALL_LIMIT_S)

    def uninstall(self, *names: str) -> None:
        """Remove distributions by pip."""
        command = [str(self._python), "-m", "pip", "uninstall", "-q", "-y", *names]
        self._run(command, cwd=self._folder, limit_s=INSTALL_LIMIT_S)

    def use(self, *words: str, again: bool = False) -> dict[str, str]:
        """Run ``use_installed.py`` with these options, and return the versions in use.

        Args:
            words: its options.
            again: in the folder of the use before, whose store is there; otherwise in a new one.
        """
        self._uses += not again
        work = self._folder / f"use-{self._uses}"
        work.mkdir(exist_ok=True)
        command = [str(self._python), str(USE), str(SCRIPT), *words]
        printed = self._run(command, cwd=work, limit_s=USE_LIMIT_S, HOME=str(work))
        versions: dict[str, str] = json.loads(printed.splitlines()[-1])
        return versions

    def run_tests(self, *paths: str) -> str:
        """Run tests of the checkout that start no training; return pytest's last line."""
        command = [str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not launch", *paths]
        return self._run(command, cwd=ROOT, limit_s=USE_LIMIT_S).splitlines()[-1]

    def names(self) -> set[str]:
        """Return the names of the distributions here."""
        return {_name(each) for each in distributions(path=[str(self._site)])}

    def check_torchx(self, *expected: str) -> None:
        """Raise an error unless just these distributions of TorchX are here, each with its own files."""
        there = {_name(each): each for each in distributions(path=[str(self._site)]) if _name(each) in TORCHX}
        if set(there) != set(expected):
            raise CleanEnvironmentError(f"of TorchX, {sorted(there)} is installed, not {sorted(expected)}")
        for name, distribution in there.items():
            if changed := _changed_files(distribution):
                raise CleanEnvironmentError(f"{name} has files of another distribution: {changed[:5]}")

    def _run(self, command: list[str], *, cwd: Path, limit_s: float, **own: str) -> str:
        """Return what a command prints on both channels."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TORCHX", "VIRTUAL"))
        }
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**kept, **own, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if done.returncode:
            raise CleanEnvironmentError(f"{' '.join(command)}\n{done.stdout[-3000:]}")
        return done.stdout


def _name(distribution: Distribution) -> str:
    return (distribution.name or "").lower().replace("_", "-")


def _changed_files(distribution: Distribution) -> list[str]:
    """Return the files that are absent or have another digest than the distribution's list of files says."""
    changed = []
    for file in distribution.files or ():
        if file.hash is None:  # the list itself, and compiled files
            continue
        path = Path(str(file.locate()))
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest() if path.exists() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    return changed
