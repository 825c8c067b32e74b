"""Editor of config file copies: each lies in a folder that mirrors the original's with symbolic links.

``main`` runs in a child process of each rank, started by ``config_files``. ``launch/config_text`` edits the text.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from torchx_cubicml.errors import CubicMLError, LaunchError
from torchx_cubicml.launch.config_text import parse_document, with_values
from torchx_cubicml.recorder.apply.config_files import AGREE_S
from torchx_cubicml.recorder.process.child import answer_as_child
from torchx_cubicml.recorder.ranks.agreement import vote_unanimously
from torchx_cubicml.recorder.ranks.tcp_store import connected
from torchx_cubicml.records.contract import decode_contract
from torchx_cubicml.settings import child_environment, read_job_environment
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.contract import FilePatch
    from torchx_cubicml.settings import JobEnvironment


_MAX_LINKS = 10_000  # links
_MAX_PATH = 4096  # characters


def mirror_folder(folder: Path, *, up: int, inside: Path) -> Path:
    """Make a mirror of ``folder`` below ``inside``, with a symbolic link to each of its entries, and return its path.

    Args:
        folder: as the program would reach it.
        up: number of parent folders to mirror too, for paths that begin with ``..``.
        inside: empty folder that only this process uses.

    Raises:
        LaunchError: these folders have too many entries, or there are fewer than ``up`` parents.
        OSError: one of the folders cannot be read.
    """
    original = folder.resolve()
    if up > len(original.parents):
        raise LaunchError(f"a path in a config file in {folder} leads above the root folder")
    chain = [original, *original.parents][: up + 1]
    mirror, n_links = inside, 0
    for source, below in zip(reversed(chain), [*reversed(chain[:-1]), None], strict=True):
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries if below is None or entry.name != below.name]
        n_links += len(names)
        if n_links > _MAX_LINKS:
            raise LaunchError(f"more than {_MAX_LINKS} files are beside {folder}, too many to link to a copy")
        for name in names:
            (mirror / name).symlink_to(source / name)
        if below is not None:
            mirror /= below.name
            mirror.mkdir(mode=0o700)
    return mirror


def folders_up(values: object) -> int:
    """Return the largest number of parent folders that paths among a config file's values go up.

    >>> folders_up({"data": "../corpus/train.bin", "batch": 4, "more": ["a/../b", "x/../../../y"]})
    2
    """
    if isinstance(values, dict):
        return _max_folders_up(values.values())
    if isinstance(values, list):
        return _max_folders_up(values)
    if not isinstance(values, str) or len(values) > _MAX_PATH or values.startswith("/"):
        return 0
    return sum(part == ".." for part in PurePosixPath(os.path.normpath(values)).parts)


def _max_folders_up(values: Iterable[object]) -> int:
    return max(map(folders_up, values), default=0)


MADE = "made"  # file with the paths of the copies, each ended by a null character; written last
_ANSWER = "answer.json"
_CONNECT_S = 10.0
_TICK_S = 0.02


def main() -> NoReturn:
    """Read the program's arguments from standard input, and write the rewritten ones to standard output.

    The arguments of this process are the parent's folder for the copies and, if other ranks rely on this one,
    ``RELIED_ON``.
    """
    job, folder = read_job_environment(), sys.argv[1]
    answer, obstacle = _made(job, json.loads(sys.stdin.read()), folder)

    def closing(refused: str) -> str:
        if refused and folder:
            shutil.rmtree(folder, ignore_errors=True)
        return json.dumps({**answer, "refused": refused})

    def agree(on_join: Callable[[], None]) -> str:
        agreed = _agreed(job, obstacle, comes=on_join)
        return closing(obstacle or ("" if agreed else "another rank could not change them, or did not join in time"))

    answer_as_child(agree, lambda why: closing(obstacle or f"the ranks cannot agree: {why}"))


def _made(job: JobEnvironment, args: Sequence[str], folder: str) -> tuple[dict[str, object], str]:
    """Make the copies and return the answer, or the reason for none; idempotent, as an earlier child may have run."""
    answer_file = Path(folder, _ANSWER)
    if not folder:
        return {}, "no folder for temporary files can be made"
    try:
        if Path(folder, MADE).exists():
            return dict(json.loads(answer_file.read_text())), ""
        shutil.rmtree(folder, ignore_errors=True)  # a failed child may have left an incomplete folder
        Path(folder).mkdir(mode=0o700)
        copies, answer = copied(decode_contract(job.contract).files, args, child_environment({}), folder=Path(folder))
        answer_file.write_text(json.dumps(answer))
        hidden = Path(folder, f".{MADE}")
        hidden.write_bytes(b"".join(os.fsencode(copy) + b"\0" for copy in copies))
        hidden.rename(Path(folder, MADE))
        time.sleep(_TICK_S)  # the program's own files are then newer, even on a clock that ticks every 10 ms
    except (CubicMLError, OSError, ValueError) as error:
        return {}, str(error) or type(error).__name__
    return answer, ""


def copied(
    patches: Sequence[FilePatch], args: Sequence[str], env: Mapping[str, str], *, folder: Path
) -> tuple[list[Path], dict[str, object]]:
    """Write patched copies of config files, and return them with the arguments and variables that name them.

    Args:
        patches: changes to each file.
        args: of the program.
        env: of this process.
        folder: for the copies; readable by this user only.

    Raises:
        LaunchError: a file has changed since the launcher read it, is no longer named by its argument or variable, or
            cannot be patched.
        OSError: a file cannot be read, or its copy cannot be written.
    """
    words, variables = list(args), {}
    texts = [_patched(patch) for patch in patches]
    up = max(folders_up(parse_document(text, path=patch.path)) for patch, text in zip(patches, texts, strict=True))
    copies = _Copies(folder, up)
    for patch, text in zip(patches, texts, strict=True):
        copy = copies.of(Path(patch.path), text)
        if patch.argument is None:
            if env.get(patch.variable) != patch.path:
                raise LaunchError(f"variable {patch.variable} does not name {patch.path} in the job")
            variables[patch.variable] = str(copy)
        elif patch.argument >= len(words) or not words[patch.argument].endswith(patch.path):
            raise LaunchError(f"the arguments no longer name {patch.path} at the same position")
        else:
            words[patch.argument] = words[patch.argument].removesuffix(patch.path) + str(copy)
    return copies.made, {"args": words, "env": variables}


def _patched(patch: FilePatch) -> str:
    text = read_text(patch.path)
    if hashlib.sha256(text.encode()).hexdigest() != patch.digest:
        raise LaunchError(f"{patch.path} has changed since the launch was made")
    return with_values(text, dict(patch.values), path=patch.path)


class _Copies:
    """Copies of files, with those of one folder in one mirror of it, whose other entries are symbolic links."""

    def __init__(self, folder: Path, up: int) -> None:
        self._folder = folder
        self._up = up
        self._mirrors: dict[Path, Path] = {}
        self.made: list[Path] = []

    def of(self, original: Path, text: str) -> Path:
        parent = original.parent
        if parent not in self._mirrors or self._mirrors[parent] / original.name in self.made:
            inside = self._folder / str(len(self.made))
            inside.mkdir(mode=0o700)
            self._mirrors[parent] = mirror_folder(parent, up=self._up, inside=inside)
        copy = self._mirrors[parent] / original.name
        copy.unlink()  # removes the link
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode())
        self.made.append(copy)
        return copy


def _agreed(job: JobEnvironment, refused: str, *, comes: Callable[[], None]) -> bool:
    """Return whether every rank has made its copies; all ranks get the same answer through the job's TCPStore.

    Raises:
        ConnectionError: the job has no store that the ranks can reach.
        RuntimeError: the store does not answer, so the agreement is unknown.
    """
    if job.world_size == 1:
        return not refused
    end, word = time.monotonic() + AGREE_S, "" if refused else "can"
    return vote_unanimously(connected(job, within_s=_CONNECT_S), job, ("files", word), until=end, comes=comes)
