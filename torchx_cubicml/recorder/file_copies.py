"""A process of our own beside one rank: its copies of config files, made where all ranks can."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.contract import decode_contract
from torchx_cubicml.document import parse_document, with_values
from torchx_cubicml.errors import CubicMLError, LaunchError
from torchx_cubicml.recorder.beside import folders_up, looking_like
from torchx_cubicml.recorder.config_files import AGREE_S
from torchx_cubicml.settings import child_environment, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.contract import FilePatch
    from torchx_cubicml.settings import JobEnvironment

PREFIX = "torchx-cubicml-files-"


def main() -> None:
    """Read the program's arguments from standard input, and write what they become to standard output."""
    job = read_job_environment()
    args = json.loads(sys.stdin.read())
    folder = ""
    try:
        folder = tempfile.mkdtemp(prefix=f"{PREFIX}{sys.argv[1]}-")
        answer = copied(decode_contract(job.contract).files, args, child_environment({}), folder=Path(folder))
        refused = ""
    except (CubicMLError, OSError, ValueError) as error:
        answer, refused = {}, str(error) or type(error).__name__
    if not agreed(job, refused):
        refused = refused or "another rank could not, or did not come in time"
    if refused and folder:
        shutil.rmtree(folder, ignore_errors=True)
        folder = ""
    sys.stdout.write(json.dumps({**answer, "refused": refused, "folder": folder}))
    sys.stdout.flush()
    os._exit(0)  # whatever hangs in a thread


def copied(
    patches: Sequence[FilePatch], args: Sequence[str], env: Mapping[str, str], *, folder: Path
) -> dict[str, object]:
    """Return arguments and variables that name patched copies of config files.

    Args:
        patches: what is changed in which file.
        args: of the program.
        env: of this process.
        folder: for the copies, which nobody else can read.

    Raises:
        LaunchError: a file is not the one that the launcher has read, is not where it was named, or cannot be patched.
        OSError: it cannot be read, or its copy not be written.
    """
    words, variables = list(args), {}
    texts = [_patched(patch) for patch in patches]
    up = max(folders_up(parse_document(text, path=patch.path)) for patch, text in zip(patches, texts, strict=True))
    copies = _Copies(folder, up)
    for patch, text in zip(patches, texts, strict=True):
        copy = copies.of(Path(patch.path), text)
        if patch.argument is None:
            if env.get(patch.variable) != patch.path:
                raise LaunchError(f"variable {patch.variable} does not name {patch.path} here")
            variables[patch.variable] = str(copy)
        elif patch.argument >= len(words) or not words[patch.argument].endswith(patch.path):
            raise LaunchError(f"the arguments do not name {patch.path} where they did")
        else:
            words[patch.argument] = words[patch.argument].removesuffix(patch.path) + str(copy)
    return {"args": words, "env": variables, "copies": [*map(str, copies.made)]}


def _patched(patch: FilePatch) -> str:
    content = Path(patch.path).read_bytes()
    if hashlib.sha256(content).hexdigest() != patch.digest:
        raise LaunchError(f"{patch.path} is not as it was when the launch was made")
    return with_values(content.decode(), dict(patch.values), path=patch.path)


class _Copies:
    """Copies of files, those of one folder side by side, among links to all that lies beside the originals."""

    def __init__(self, folder: Path, up: int) -> None:
        self._folder = folder
        self._up = up
        self._like: dict[Path, Path] = {}
        self.made: list[Path] = []

    def of(self, original: Path, text: str) -> Path:
        place = original.parent
        if place not in self._like or self._like[place] / original.name in self.made:
            inside = self._folder / str(len(self.made))
            inside.mkdir(mode=0o700)
            self._like[place] = looking_like(place, up=self._up, inside=inside)
        copy = self._like[place] / original.name
        copy.unlink()  # the link
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode())
        self.made.append(copy)
        return copy


def agreed(job: JobEnvironment, refused: str) -> bool:
    """Whether every rank can do what it is asked to."""
    if job.world_size == 1:
        return not refused
    from torchx_cubicml.recorder.peers import Peers

    return Peers(job).agree("files", "" if refused else "can", within_s=AGREE_S)
