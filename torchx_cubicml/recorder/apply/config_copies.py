"""Edited copies of config files, placed where the script finds them in the original's stead."""

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
from torchx_cubicml.recorder.process.child import COMES, COUNTED_ON, FAILS
from torchx_cubicml.recorder.ranks.agreement import all_say
from torchx_cubicml.recorder.ranks.tcp_store import connected
from torchx_cubicml.records.contract import decode_contract
from torchx_cubicml.settings import child_environment, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.contract import FilePatch
    from torchx_cubicml.settings import JobEnvironment


_MOST_BESIDE = 10_000  # links
_MOST_PATH = 4096  # characters


def looking_like(folder: Path, *, up: int, inside: Path) -> Path:
    """Return a folder below ``inside`` in which a link leads to each thing that is in ``folder``.

    Args:
        folder: as the program would reach it.
        up: how many folders above it must look like the user's too, for paths that begin with ``..``.
        inside: empty, of this process alone.

    Raises:
        LaunchError: too much is in these folders, or there are not as many.
        OSError: one cannot be read.
    """
    theirs = folder.resolve()
    if up > len(theirs.parents):
        raise LaunchError(f"a path in a file of {folder} leads further up than there are folders")
    chain = [theirs, *theirs.parents][: up + 1]
    ours, n_links = inside, 0
    for place, below in zip(reversed(chain), [*reversed(chain[:-1]), None], strict=True):
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if below is None or entry.name != below.name]
        n_links += len(names)
        if n_links > _MOST_BESIDE:
            raise LaunchError(f"more than {_MOST_BESIDE} files lie beside {folder}, which a copy there may lead to")
        for name in names:
            (ours / name).symlink_to(place / name)
        if below is not None:
            ours /= below.name
            ours.mkdir(mode=0o700)
    return ours


def folders_up(values: object) -> int:
    """Return how many folders above its own a file's values lead, at most.

    >>> folders_up({"data": "../corpus/train.bin", "batch": 4, "more": ["a/../b", "x/../../../y"]})
    2
    """
    if isinstance(values, dict):
        return _most(values.values())
    if isinstance(values, list):
        return _most(values)
    if not isinstance(values, str) or len(values) > _MOST_PATH or values.startswith("/"):
        return 0
    return sum(part == ".." for part in PurePosixPath(os.path.normpath(values)).parts)


def _most(values: Iterable[object]) -> int:
    return max(map(folders_up, values), default=0)


MADE = "made"  # names the copies, each ended by a null character; written when all else is made
_ANSWER = "answer.json"
_CONNECT_S = 10.0
_TICK_S = 0.02


def main() -> NoReturn:
    """Read the program's arguments from standard input, and write what they become to standard output.

    The arguments of this process are the folder for the copies, which is the parent's, and whether the other ranks
    count on this one. A failure after that is an exit status, for nobody here knows what the others do.
    """
    job, (folder, *more) = read_job_environment(), sys.argv[1:]
    args = json.loads(sys.stdin.read())
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    answer, refused = _made(job, args, folder)
    try:
        agreed = _agreed(job, refused, comes=lambda: tell(COMES))
        refused = refused or ("" if agreed else "another rank could not, or did not come in time")
    except Exception as error:  # noqa: BLE001 - a store of the job that is gone must not stop the job
        why = f"the ranks cannot agree: {type(error).__name__}: {error}"
        if told or COUNTED_ON in more:
            tell(f"{FAILS}{why}")
            os._exit(1)
        refused = refused or why
    if refused and folder:
        shutil.rmtree(folder, ignore_errors=True)
    tell(json.dumps({**answer, "refused": refused}))
    os._exit(0)  # whatever hangs in a thread


def _made(job: JobEnvironment, args: Sequence[str], folder: str) -> tuple[dict[str, object], str]:
    """Return the answer, or why there is none; a child before this one may have made it already."""
    kept = Path(folder, _ANSWER)
    if not folder:
        return {}, "there is no place for temporary files"
    try:
        if Path(folder, MADE).exists():
            return dict(json.loads(kept.read_text())), ""
        shutil.rmtree(folder, ignore_errors=True)  # what a child has left half made
        Path(folder).mkdir(mode=0o700)
        copies, answer = copied(decode_contract(job.contract).files, args, child_environment({}), folder=Path(folder))
        kept.write_text(json.dumps(answer))
        hidden = Path(folder, f".{MADE}")
        hidden.write_bytes(b"".join(os.fsencode(copy) + b"\0" for copy in copies))
        hidden.rename(Path(folder, MADE))
        time.sleep(_TICK_S)  # what the program makes is newer, by any clock that ticks in hundredths
    except (CubicMLError, OSError, ValueError) as error:
        return {}, str(error) or type(error).__name__
    return answer, ""


def copied(
    patches: Sequence[FilePatch], args: Sequence[str], env: Mapping[str, str], *, folder: Path
) -> tuple[list[Path], dict[str, object]]:
    """Return patched copies of config files, and the arguments and variables that name them.

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
    return copies.made, {"args": words, "env": variables}


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


def _agreed(job: JobEnvironment, refused: str, *, comes: Callable[[], None]) -> bool:
    """Whether every rank can do what it is asked to.

    Raises:
        ConnectionError: there is no place where ranks could meet.
        RuntimeError: what they agreed on is not known.
    """
    if job.world_size == 1:
        return not refused
    end, word = time.monotonic() + AGREE_S, "" if refused else "can"
    return all_say(connected(job, within_s=_CONNECT_S), job, ("files", word), until=end, comes=comes)
