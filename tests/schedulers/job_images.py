"""Images of jobs in containers: links and empty folders alone, for what a job runs is mounted from this machine."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.schedulers.scenarios import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_FOLDERS = {"usr": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777, "dev": 0o755, "proc": 0o755, "sys": 0o755}
_PASSWD = b"root:x:0:0:root:/root:/bin/bash\n"


def packed_image(programs: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """Return the files of an image as tar, to import; ``programs`` is path -> content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, target in _LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, mode in _FOLDERS.items():
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        for name, content in {**programs, "etc/passwd": _PASSWD}.items():
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(content), 0o755
            tar.addfile(file, io.BytesIO(content))
    return packed.getvalue()


def container_options(image: str, folder: Path) -> tuple[str, ...]:
    """Return the words of `dist.ddp` for a job that runs this environment, and sees ``folder`` under the same path."""
    mounts = [f"type=bind,src={path},dst={path},readonly" for path in _run_by_jobs()]
    mounts.append(f"type=bind,src={folder},dst={folder}")
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin"
    return ("--image", image, "--mounts", ",".join(mounts), "--env", f"PATH={path},PYTHONPATH={ROOT}")


def _run_by_jobs() -> list[Path]:
    """Return the folders of Python, its environment and this checkout, without those within another."""
    wanted = {Path(name).resolve() for name in ("/usr", sys.prefix, sys.base_prefix, ROOT)}
    return sorted(path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted))
