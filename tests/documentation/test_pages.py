"""Each command, each TOML and each Python block of a page, executed in its order in a folder of the page's own.

The folder holds the files of ``files/``, the example of the repository and a store of real launches of ``train.py``.
A page whose first line is ``<!-- test: a new folder -->`` begins with the scripts alone, and without a launch.
``make test-docs`` calls this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.documentation.blocks import PAGES, ROOT, Block, blocks_of
from tests.documentation.printed import unprinted
from tests.documentation.space_files import read_space

FILES = Path(__file__).parent / "files"
ENVIRONMENTS = Path(os.environ.get("CUBICML_ENVIRONMENTS", ROOT))  # the folder of .venv-integrations and the like
TRAINERS = ("hf", "lightning", "megatron_core", "torchrec", "torchtitan")  # scripts that other tests launch too
LONGEST_S = 600
TRAINING = "dist.ddp -j 1x1 --script train.py -- --batch_size 4 --accumulate 8"


@dataclass
class Workplace:
    """A folder in which a reader types the commands of a page."""

    folder: Path
    printed: str | None = ""  # by the last command; None where the libraries that it needs are not here
    variables: str = ""  # of the shell, that the blocks up to here set
    absent: set[str] = field(default_factory=set)  # environments that are not here
    faults: list[str] = field(default_factory=list)

    def environment(self, extra: str = "") -> dict[str, str]:
        """Return the variables of the reader's shell; ``extra`` names an environment of other libraries."""
        programs = [ENVIRONMENTS / f".venv-{extra}" / "bin"] if extra else []
        kept = {
            name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ
        }
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {
            **kept,
            "PATH": os.pathsep.join([*map(str, programs), str(Path(sys.executable).parent), kept["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")])),
            "HOME": str(home),
            "COLUMNS": "100",
            "OMP_NUM_THREADS": "1",
            "GIT_CONFIG_GLOBAL": str(FILES / "gitconfig"),
        }

    def run(self, words: list[str], *, extra: str = "") -> int:
        """Run a command to its end, keep what it prints, and return its exit status."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        self.printed = done.stdout.replace(str(self.folder / "home"), "~")
        return done.returncode

    def test(self, block: Block) -> None:
        """Test one block by its rules, and note what is wrong."""
        if block.language == "bash":
            self.variables += "".join(re.findall(r"^[A-Z_]+=.*\n", block.tested, re.MULTILINE))
        if block.skipped or block.output_of or block.language == "mermaid":
            return
        if name := block.argument("file"):
            self.write(name, block)
        elif block.language == "toml":
            self.expect(block, bool(read_space(block).parameters), "no parameter")
        elif block.language == "text":
            missing = [] if self.printed is None else unprinted(block.tested, self.printed)
            self.expect(block, not missing, f"not printed: {missing}\n{self.printed}")
        else:
            self.execute(block)

    def write(self, name: str, block: Block) -> None:
        """Write a block as the file that the page tells its reader to write."""
        if block.language == "toml":
            self.expect(block, bool(read_space(block).parameters), "no parameter")
        if block.language == "bash":
            self.expect(block, self.run(["bash", "-n", "-c", block.tested]) == 0, self.printed)
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(block.tested)

    def execute(self, block: Block) -> None:
        """Execute commands or Python."""
        extra = block.argument("in")
        if extra and not (ENVIRONMENTS / f".venv-{extra}").is_dir():
            self.absent.add(f".venv-{extra}")
            self.printed = None
            return
        if block.language == "bash":
            status = self.run(["bash", "-euo", "pipefail", "-c", f"{self.variables}\n{block.tested}"], extra=extra)
        else:
            status = self.run(["python", "-c", block.tested], extra=extra)
        wanted = int(block.argument("exit") or 0)
        self.expect(block, status == wanted, f"exit status {status}\n{(self.printed or '')[-6000:]}")

    def expect(self, block: Block, holds: bool, otherwise: str) -> None:
        """Note a fault of a block."""
        if not holds:
            self.faults.append(f"{block.place}: {otherwise}\n--- of:\n{block.tested}")


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of a user who has tuned ``train.py``: two configs on one process, by real launches."""
    place = Workplace(furnished(tmp_path_factory.mktemp("launched")))
    tune = ["torchx", "cubicml", "tune", "--space", "gpt.toml", "--budget", "3 launches", "--", *TRAINING.split()]
    assert place.run(tune) == 0, place.printed
    return place.folder / "home"


def furnished(folder: Path) -> Path:
    """Put the files that the pages speak of into a folder."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    return with_scripts(folder)


def with_scripts(folder: Path) -> Path:
    """Put the scripts that the pages launch into a folder."""
    jobs = ROOT / "tests" / "integrations" / "jobs"
    trainers = [jobs / f"train_{trainer}.py" for trainer in TRAINERS]
    for script in [*FILES.glob("*.py"), ROOT / "examples" / "train_gpt.py", *trainers]:
        shutil.copy(script, folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_the_page_do_what_it_says(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    blocks = blocks_of(page)
    is_new = page.read_text().startswith("<!-- test: a new folder -->")
    place = Workplace(with_scripts(tmp_path) if is_new else furnished(tmp_path))
    if not is_new and any(block.is_command for block in blocks):
        shutil.copytree(request.getfixturevalue("launched"), tmp_path / "home", dirs_exist_ok=True)
    for block in blocks:
        place.test(block)
    assert not place.faults, "\n\n".join(place.faults)
    if place.absent:
        pytest.skip(f"some commands need {', '.join(place.absent)}: make test-integrations")
