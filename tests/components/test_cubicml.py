from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from torchx.specs.finder import get_components

from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract

CHECKOUT = Path(__file__).resolve().parents[2]
DDP = ["dist.ddp", "-j", "1x2", "--script", "examples/train.py"]
MAIN = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"


def torchx(*words: str, cwd: Path, python: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Run TorchX's command line in a process of its own, as a user does."""
    command = [sys.executable, *python, "-c", MAIN, *words]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def dry_run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return torchx("run", "--dryrun", "-s", "local_cwd", *words, cwd=cwd, **env)


def unbroken(done: subprocess.CompletedProcess[str]) -> str:
    """Return what was printed with the texts whole that ``pprint`` breaks into lines."""
    return re.sub(r"""['"]\n\s+['"]""", "", done.stdout)


def contract_in(text: str) -> str:
    found = re.search(rf"'{CONTRACT_VARIABLE}': '([^']+)'", text)
    assert found is not None
    return found[1]


def test_the_component_is_there_and_torchx_keeps_its_own() -> None:
    assert {"cubicml", "dist.ddp", "dist.spmd", "utils.echo", "utils.python", "utils.sh"} <= set(get_components())
    if not [entry for entry in entry_points(group="torchx.components") if entry.name == "cubicml"]:
        pytest.skip("what is installed is older than pyproject.toml: make setup")
    ours = {name for name in get_components() if "cubicml" in name}
    assert ours == {"cubicml", "cubicml.megatron_lm.pretrain_gpt", "cubicml.torchtitan.train"}


def test_help_shows_usage_and_options(tmp_path: Path) -> None:
    done = torchx("run", "cubicml", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "torchx run cubicml --space gpt.toml dist.ddp -j 1x2 --script train.py -- --batch_size 4" in done.stdout
    for option in ("--space", "--store", "--mode"):
        assert option in done.stdout


@pytest.mark.parametrize("separator", [[], ["--"]], ids=["plain", "separated"])
def test_a_dry_run_shows_the_recorded_command(tmp_path: Path, separator: list[str]) -> None:
    done = dry_run("cubicml", "--store", "mine", *separator, *DDP, "--", "--batch_size", "4", cwd=tmp_path)
    assert done.returncode == 0
    shown = unbroken(done)
    assert "-- -mtorchx_cubicml.recorder examples/train.py --batch_size 4; fi;" in shown
    contract = decode_contract(contract_in(shown))
    assert (contract.store, contract.scheduler) == (str(tmp_path / "mine"), "local_cwd")
    assert f"torchx-cubicml: this launch will be recorded in {tmp_path / 'mine'}\n" in done.stderr
    assert "torchx-cubicml" not in done.stdout.split("=== APPLICATION ===")[0]
    assert not (tmp_path / "mine").exists(), "a dry run writes nothing"


def test_components_of_torchx_run_as_before(tmp_path: Path) -> None:
    alone, off = (dry_run(*prefix, *DDP, cwd=tmp_path) for prefix in ((), ("cubicml", "--mode", "off")))
    app = [done.stdout.partition("=== SCHEDULER REQUEST ===")[0] for done in (alone, off)]
    app = [re.sub(r"(?<=_SESSION_ID': ')[^']*", "", text) for text in app]  # newer TorchX draws one for each start
    assert app[0] == app[1]
    assert "torchrun" in app[0]


def test_the_inner_component_keeps_colliding_options(tmp_path: Path) -> None:
    body = "import torchx.specs as specs\n\ndef train(store: str) -> specs.AppDef:\n"
    body += "    role = specs.Role(name='r', image='', entrypoint='python', args=['t.py', '--store', store])\n"
    (tmp_path / "mine.py").write_text(f"{body}    return specs.AppDef(name='a', roles=[role])\n")
    done = dry_run("cubicml", "--store", "ours", "--", "mine.py:train", "--store", "theirs", cwd=tmp_path)
    assert done.returncode == 0
    shown = unbroken(done)
    assert re.search(r"recorder',\s+'t.py',\s+'--store',\s+'theirs',\s+'4',", shown)
    assert decode_contract(contract_in(shown)).store == str(tmp_path / "ours")


@pytest.mark.parametrize(
    ("words", "reason", "status"),
    [
        (["dist.ddp", "-j", "1y2", "--script", "t.py"], "Invalid format for -j, .* Given: 1y2", 1),
        (["dist.ddp", "-j", "1x2"], "exactly one of --script and -m must be specified", 1),
        (["dist.nope"], "Component `dist.nope` not found", 1),
        (["nope.py:train"], "nope.py does not exist", 1),
        ([], "give a component to run", 1),
        (["dist.ddp", "--script", "t.py", "--lr", "1"], "unrecognized arguments: --lr", 2),
    ],
    ids=["size", "script", "component", "file", "nothing", "option"],
)
def test_a_refusal_of_torchx_shows_no_traceback(tmp_path: Path, words: list[str], reason: str, status: int) -> None:
    done = dry_run("cubicml", "--store", "s", *words, cwd=tmp_path)
    assert done.returncode == status
    assert re.search(reason, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.launch
def test_a_silent_store_delays_a_launch_by_its_deadline(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text('[parameters.a]\nchoices = [1, 2]\nflag = "--a"\n')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = f"ftp://127.0.0.1:{silent.getsockname()[1]}/x"
        started = time.monotonic()
        done = dry_run("cubicml", "--space", "space.toml", "--store", store, *DDP, "--", "--a", "1", cwd=tmp_path)
        waited_s = time.monotonic() - started
    assert done.returncode == 0
    assert f"keeping your arguments: store {store} was not read within 5 s\n" in done.stderr
    assert "recorder examples/train.py --a 1; fi;" in unbroken(done)
    assert waited_s < 30, "5 s, and what TorchX takes on a busy machine"


def test_settings_of_a_project_are_read(tmp_path: Path) -> None:
    (tmp_path / ".torchxconfig").write_text("[component:cubicml]\nstore = team\n\n[component:dist.ddp]\nj = 1x7\n")
    done = dry_run("cubicml", "dist.ddp", "--script", "t.py", cwd=tmp_path, TORCHX_CUBICML_STORE="env")
    shown = unbroken(done)
    assert decode_contract(contract_in(shown)).store == str(tmp_path / "team")
    assert "--nproc_per_node 7" in shown


@pytest.fixture
def without_us(tmp_path: Path) -> Path:
    """Make a folder that holds everything installed here but this package."""
    folder = tmp_path / "site"
    folder.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if "cubicml" not in entry.name.lower():
                (folder / entry.name).symlink_to(entry)
    return folder


def test_a_bare_checkout_works_from_elsewhere(tmp_path: Path, without_us: Path) -> None:
    for folder in ("torchx_cubicml", "components"):  # an installation in place leaves its metadata beside them
        shutil.copytree(CHECKOUT / folder, tmp_path / "bare" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    component = "../bare/components/cubicml.py:cubicml"
    words = ["run", "--dryrun", "-s", "local_cwd", component, "--store", "s", *DDP]
    done = torchx(*words, cwd=elsewhere, python=("-S",), PYTHONPATH=str(without_us), PYTHONSAFEPATH="1")
    assert done.returncode == 0, done.stderr
    assert "-- -mtorchx_cubicml.recorder examples/train.py" in unbroken(done)


@pytest.mark.parametrize(
    ("action", "absent"),
    [
        ("pass", ["torch", "sklearn", "pandas", "scipy", "numpy", "fsspec", "rich"]),
        (
            "cubicml(*words, store='s', mode='record')",
            ["torch", "sklearn", "pandas", "scipy", "numpy", "fsspec", "rich"],
        ),
        ("cubicml(*words, store='s', space='space.toml')", ["torch", "sklearn", "pandas", "scipy"]),
    ],
    ids=["import", "record", "nothing known"],
)
def test_heavy_packages_stay_out_of_a_launch(tmp_path: Path, action: str, absent: list[str]) -> None:
    (tmp_path / "space.toml").write_text('[parameters.a]\nchoices = [1, 2]\nflag = "--a"\n')
    program = (
        "import sys\nimport torchx_cubicml\nfrom torchx_cubicml.components.cubicml import cubicml\n"
        f"words = ['dist.ddp', '--script', 't.py', '--', '--a', '1']\n{action}\nprint(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not set(absent) & set(done.stdout.split())
