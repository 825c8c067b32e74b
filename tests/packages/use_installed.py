"""Uses torchx-cubicml as installed in the Python that runs this: commands, two launches, a report, and the extras.

    PYTHON use_installed.py SCRIPT [--torchrun-alone] [--extras report,pandas [--extras-alone]] [--thorough]

It works in the current folder. Each step prints a line; the last line is the versions as JSON. A step that fails ends
it with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import sysconfig
from importlib import import_module
from importlib.metadata import distributions, files, version
from pathlib import Path

SCRIPTS = Path(sysconfig.get_path("scripts"))
STORE, PAST = "store", "past"
SHOWN = ("torch", "torchx", "torchx-nightly", "scikit-learn", "scipy", "numpy", "fsspec", "rich", "pyyaml", "tomlkit")
SHOWN += ("threadpoolctl", "s3fs", "openpyxl", "pyarrow", "pandas", "vl-convert-python")
OURS = {"cubicml", "cubicml.megatron_lm.pretrain_gpt", "cubicml.torchtitan.train"}
SPACE = """
[parameters.micro_batch_size]
choices = [32, 64, 128]
flag = "--batch_size"
"""


class StepFailedError(Exception):
    """A step that does not do what it should."""


def main() -> int:
    """Take the steps one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", type=Path, help="training to launch")
    parser.add_argument("--torchrun-alone", action="store_true", help="there is no TorchX here")
    parser.add_argument("--extras", default="", help="extras that are installed, with commas between")
    parser.add_argument("--extras-alone", action="store_true", help="only these: the store is here from an earlier use")
    parser.add_argument("--thorough", action="store_true", help="predictors, searchers and space files too")
    options = parser.parse_args()
    extras = [name for name in options.extras.split(",") if name]
    if not options.extras_alone:
        _use(str(options.script.resolve()), torchx=not options.torchrun_alone, figures="report" in extras)
    for name in extras:
        _done(f"extra {name}", EXTRAS[name]())
    if options.thorough:
        _done("past jobs", _past_jobs())
    print(json.dumps(_versions()))
    return 0


def _use(script: str, *, torchx: bool, figures: bool) -> None:
    Path("space.toml").write_text(SPACE)
    _done("place", _place())
    _done("cubicrun", _cubicrun(script))
    if torchx:
        _done("components", _components())
        _done("sub-commands", _sub_commands())
        _done("launch", _launch(script))
        _done("report", _report(figures=figures))
    else:
        _done("without TorchX", _cure())
    _done("store", _trials(2 if torchx else 1))


def _done(name: str, found: str) -> None:
    print(f"{name}: {found}", flush=True)


def _check(claim: bool, text: str) -> None:
    if not claim:
        raise StepFailedError(text)


def _run(program: str, *words: str) -> str:
    """Return what a console script of this environment prints on both channels; a failure ends the program."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    command = [str(SCRIPTS / program), *words]
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    _check(done.returncode == 0, f"{' '.join([program, *words])} ended with {done.returncode}:\n{done.stdout}")
    _check("Traceback" not in done.stdout, f"{' '.join([program, *words])} printed a traceback:\n{done.stdout}")
    return done.stdout


def _place() -> str:
    package = Path(import_module("torchx_cubicml").__file__ or "").parent
    _check(package.is_relative_to(Path(sys.prefix)), f"torchx_cubicml is loaded from {package}, not from {sys.prefix}")
    return str(len(files("torchx-cubicml") or ())) + " files"


def _cubicrun(script: str) -> str:
    usage = _run("cubicrun", "--help")
    _check("--cubicml-space" in usage and "--nproc" in usage, usage)
    launched = _run("cubicrun", "--cubicml-store", STORE, "--nproc_per_node", "1", script, "--steps", "30")
    _check("this launch will be recorded" in launched, launched)
    return "launched"


def _cure() -> str:
    """Return what the modules that need TorchX say without it."""
    said = []
    for name in ("cli", "components.cubicml", "components.trainers.torchtitan"):
        try:
            import_module(f"torchx_cubicml.{name}")
        except ModuleNotFoundError as error:
            said.append(str(error))
    _check(len(said) == 3 and all("pip install 'torchx-cubicml[torchx]'" in text for text in said), str(said))
    return said[0]


def _components() -> str:
    from torchx.specs.finder import get_components

    found = set(get_components())
    _check({"dist.ddp", "utils.echo"} | OURS <= found, f"components are {sorted(found)}")
    return ", ".join(sorted(OURS))


def _sub_commands() -> str:
    """Load each sub-command, and ask TorchX's own command line for their names."""
    from torchx_cubicml.cli import COMMANDS

    usage = _run("torchx", "cubicml", "--help")
    for name in COMMANDS:
        _check(name in usage, usage)
        import_module(f"torchx_cubicml.cli.{name}").add_arguments(argparse.ArgumentParser())
    return ", ".join(COMMANDS)


def _launch(script: str) -> str:
    words = ["-j", "1x1", "--script", script, "--", "--steps", "30", "--batch_size", "64"]
    run = ["--log_level", "ERROR", "run", "-s", "local_cwd", "--wait"]
    launched = _run("torchx", *run, "cubicml", "--store", STORE, "--space", "space.toml", "dist.ddp", *words)
    _check("this launch will be recorded" in launched, launched)
    return "launched"


def _report(*, figures: bool) -> str:
    _run("torchx", "cubicml", "report", "--store", STORE, "--out", "page.html")
    page = Path("page.html").read_text()
    assets = Path(import_module("torchx_cubicml").__file__ or "").parent / "report" / "assets"
    for name in ("report.css", "report.js"):
        line = max((assets / name).read_text().splitlines(), key=len).strip()
        _check(line in page, f"the page lacks {name}")
    _check(("Figures are left out" not in page) is figures, "figures stand without the renderer, or lack with it")
    return f"{len(page)} characters, with{'' if figures else 'out'} figures"


def _trials(count: int) -> str:
    from torchx_cubicml import TrialStore

    trials = list(TrialStore(STORE))
    speeds = [trial.measurement.samples_per_second for trial in trials if trial.measurement]
    _check(len(speeds) == len(trials) == count and all(speeds), f"the store holds {trials}")
    return f"{count} trials with throughput"


def _past_jobs() -> str:
    """Import a table of jobs, compare the predictors on it, and ask for the next configs of a space."""
    rng = random.Random(0)
    rows = ["program,world_size,micro_batch_size,gradient_accumulation_steps,samples_per_second"]
    for batch in (1, 2, 4, 8, 16, 32):
        for accumulation in (1, 2, 4, 8):
            speed = 100 * batch / (batch + 2) * accumulation / (accumulation + 0.2) * rng.uniform(0.98, 1.02)
            rows.append(f"train_small.py,1,{batch},{accumulation},{speed:.2f}")
    Path("jobs.csv").write_text("\n".join(rows))
    _run("torchx", "cubicml", "history", "import", "jobs.csv", "--store", PAST, "--yes")
    card = _run("torchx", "cubicml", "evaluate", "--store", PAST)
    _check("roofline" in card, card)
    for words in (["history", "list"], ["report", "--out", "past.html"], ["doctor"]):
        _run("torchx", "cubicml", *words, "--store", PAST)
    return card.strip().splitlines()[0]


def _data_frame() -> str:
    from torchx_cubicml import TrialStore

    return f"{len(TrialStore(STORE).to_pandas())} rows"


def _arrow_table() -> str:
    from torchx_cubicml import TrialStore

    return f"{TrialStore(STORE).to_arrow().num_rows} rows"


def _imports() -> str:
    """Read one table in each binary format."""
    from openpyxl import Workbook
    from pyarrow import parquet, table

    columns = {"program": ["t.py"], "world_size": [1], "micro_batch_size": [4], "samples_per_second": [9.5]}
    parquet.write_table(table(columns), "jobs.parquet")
    book = Workbook()
    for row in (list(columns), [value for (value,) in columns.values()]):
        book.active.append(row)
    book.save("jobs.xlsx")
    for name in ("jobs.parquet", "jobs.xlsx"):
        _run("torchx", "cubicml", "history", "import", name, "--store", f"from-{name}", "--yes")
    return "Parquet, xlsx"


def _s3() -> str:
    """Open a store on ``s3://``; no server is asked."""
    from torchx_cubicml.store.obstacle import write_obstacle

    found = write_obstacle("s3://bucket/store") or ""
    _check("needs s3fs" not in found, found)
    return import_module("s3fs").__version__


def _renderer() -> str:
    _run("torchx", "cubicml", "report", "--store", STORE, "--out", "page.png")
    return f"{Path('page.png').stat().st_size} bytes of PNG"


EXTRAS = {"pandas": _data_frame, "arrow": _arrow_table, "import": _imports, "s3": _s3, "report": _renderer}


def _versions() -> dict[str, str]:
    there = {(each.name or "").lower().replace("_", "-") for each in distributions()}
    return {"python": platform.python_version()} | {name: version(name) for name in SHOWN if name in there}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StepFailedError as error:
        sys.exit(f"failed: {error}")
