"""One command on each scheduler: what TorchX would submit is kept as text in ``tests/golden``.

``RENEW_GOLDEN=1 pytest tests/launch/test_schedulers.py`` writes it anew, for the TorchX that is installed; read the
difference before it is committed. The mangled parts are made readable again: ids and folders by names, the contract as
JSON.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from torchx.runner import get_runner
from torchx.specs.finder import get_components

from torchx_cubicml.launch import ComponentLaunch
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.launch.recorder_fallback import PROBE
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, decode_contract
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.space.toml import parse_space

IS_NIGHTLY = "dist.torchrun" in get_components()  # there the old name still works, and says that it will go
TORCHRUN = "dist.torchrun" if IS_NIGHTLY else "dist.ddp"
GOLDEN = Path(__file__).parents[1] / "golden"
SPACE = """
objective = "samples_per_second"
[workload]
n_layers = { flag = "--n_layer" }
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch_size"
[parameters.algorithms]
choices = ["ring,tree", "nvls"]
env = "NCCL_ALGO"
[log]
pattern = 'speed (?P<samples_per_second>[0-9.]+)'
"""
ARGS = ["-j", "2x2", "--script", "train.py", "--max_retries", "3", "--env", "NCCL_ALGO=nvls", "--"]
ARGS += ["--batch_size", "2", "--n_layer", "4", "--text", "a b, it's 100 $$"]
SCHEDULERS = {
    "local_cwd": [],
    "local_docker": [],
    "slurm": [],
    "kubernetes": ["-cfg", "queue=default" + (",validate_spec=False" if IS_NIGHTLY else "")],
}
ONLY_IN_THE_RELEASE = {
    "lsf": ["-cfg", "jobdir=/shared/jobs"],
    "aws_batch": ["-cfg", "queue=default,user=me"],
    "gcp_batch": ["-cfg", "project=team"],
    "aws_sagemaker": ["-cfg", "role=me,instance_type=ml.p5,source_dir=/here,user=me"],
}
SCHEDULERS |= {} if IS_NIGHTLY else ONLY_IN_THE_RELEASE
NEEDS = {"kubernetes": "kubernetes", "gcp_batch": "google.cloud.batch_v1", "aws_sagemaker": "sagemaker"}
IN_CONTAINERS = {"local_docker", "kubernetes", "lsf", "aws_batch", "gcp_batch"}
OURS = ["--space", "space.toml", "--store", "/shared/store, of a team", "--mode", "record"]
TRAINERS = Path(__file__).parents[2] / "components" / "trainers"
TITAN_ARGS = "--module llama3 --config llama3_8b --training.local_batch_size 2 --training.global_batch_size 64 "
TITAN_ARGS += "--training.seq_len 8192 --parallelism.tensor_parallel_degree 1 --parallelism.context_parallel_degree 1 "
TITAN_ARGS += "--parallelism.pipeline_parallel_degree 1 --parallelism.data_parallel_replicate_degree 1 "
TITAN_ARGS += "--parallelism.data_parallel_shard_degree -1"
LM_ARGS = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 "
)
LM_ARGS += "--micro-batch-size 2 --global-batch-size 128 --tensor-model-parallel-size 2 --train-iters 500 --bf16"
COMPONENTS = {
    "torchtitan": [f"{TRAINERS / 'torchtitan.py'}:train", "-j", "2x8", *OURS, "--", *TITAN_ARGS.split()],
    "megatron-lm": [f"{TRAINERS / 'megatron_lm.py'}:pretrain_gpt", "-j", "2x8", *OURS, "--", *LM_ARGS.split()],
}
RUNS = {scheduler: (scheduler, ["cubicml", *OURS, TORCHRUN, *ARGS]) for scheduler in SCHEDULERS}
if "aws_sagemaker" in RUNS:  # it takes a script and named arguments, no command
    script = ["utils.python", "--script", "train.py", "--", "--batch_size", "2", "--text", "a b, it's 100 $$"]
    RUNS["aws_sagemaker"] = ("aws_sagemaker", ["cubicml", *OURS, *script])
RUNS |= {trainer: ("slurm", words) for trainer, words in COMPONENTS.items()}
MAIN = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"


def lacks(name: str) -> str:
    """Return the package that TorchX needs for requests to a scheduler, if it is not installed; else nothing."""
    package = NEEDS.get(name, "")
    try:
        return "" if not package or find_spec(package) else package
    except ModuleNotFoundError:  # of a package around it
        return package


def torchx_release() -> str:
    """Return the folder of the golden requests: TorchX words its own part differently from release to release."""
    try:
        return ".".join(version("torchx").split(".")[:2])
    except PackageNotFoundError:
        return "nightly"


@pytest.fixture(scope="module")
def dry_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, subprocess.Popen[str]]]:
    """Start one dry run per scheduler and one per trainer's component, all at once."""
    started = {}
    for name, (scheduler, component) in RUNS.items():
        if lacks(scheduler):
            continue
        folder = tmp_path_factory.mktemp(name)
        of_trainer = f'trainer = "{name}"\n[parameters]\ntp_degree = "auto"\nmicro_batch_size = [1, 2, 4]\n'
        (folder / "space.toml").write_text(of_trainer if name in COMPONENTS else SPACE)
        words = ["run", "--dryrun", "-s", scheduler, *SCHEDULERS[scheduler], "--workspace", "", *component]
        pipe = subprocess.PIPE
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHX", "KMP_"))}
        command = [sys.executable, "-c", MAIN, *words]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)
        started[name] = folder, process
    return started


@pytest.fixture(scope="module")
def requests(dry_runs: dict[str, tuple[Path, subprocess.Popen[str]]]) -> dict[str, str]:
    """Return what each scheduler would get, and what was told besides, made readable."""
    shown = {}
    for name, (folder, process) in dry_runs.items():
        stdout, stderr = process.communicate(timeout=600)
        assert process.returncode == 0, stderr
        lines = [line for line in stderr.splitlines() if line.startswith("torchx-cubicml: ")]
        request = stdout.partition("=== SCHEDULER REQUEST ===\n")[2]
        shown[name] = readable("\n".join([*lines, "", structured(RUNS[name][0], request)]), folder)
    return shown


def structured(scheduler: str, request: str) -> str:
    """Return a request with its texts whole: one value a line."""
    if scheduler in {"slurm", "lsf"} or not request:
        return request
    if scheduler == "gcp_batch":
        content = gcp_job(request)
    elif scheduler == "local_cwd":
        content = ast.literal_eval(request.strip())
    else:
        loader = type("Loader", (yaml.SafeLoader,), {})
        loader.add_multi_constructor("tag:yaml.org,2002:python/", _plain)
        content = yaml.load(request, Loader=loader)
    return json.dumps(content, indent=1)


def gcp_job(request: str) -> object:
    """Return the job in a request to GCP Batch, which TorchX prints as the bytes of a protocol buffer."""
    from google.cloud.batch_v1 import Job

    (data,) = re.findall(r"!!binary \|\n((?:  .+\n?)+)", request)
    job = Job.deserialize(base64.b64decode(data))
    return json.loads(Job.to_json(job, sort_keys=True, always_print_fields_with_no_presence=False))


def _plain(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> object:
    """Return a Python object of a request as a mapping: its attributes, or the items that an ordered one is made of."""
    if isinstance(node, yaml.SequenceNode):
        (items,) = loader.construct_sequence(node, deep=True)
        return dict(items)
    return loader.construct_mapping(node, deep=True)


def readable(text: str, folder: Path) -> str:
    contracts = sorted(set(re.findall(rf"{CONTRACT_VARIABLE}\W+(?:value\W+)?([\w-]+=*)", text)))
    for contract in contracts:
        assert isinstance(decode_contract(contract), Contract)
        text = text.replace(contract, "<contract>")
    probe = PROBE.replace('"', '\\"') if '\\"' in text else PROBE
    text = text.replace(probe, "<does its Python have the recorder?>").replace(str(folder), "<here>")
    text = re.sub(r"/tmp/torchx_\w+", "<logs>", text)
    text = re.sub(r"\b(?:train|pretrain_gpt|pretrain-gpt|torchx_utils_python)-[a-z0-9]{12,}\b", "<app>", text)
    text = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<session>", text)
    text = text.replace(torchx_version(), "<torchx>")
    if not contracts:
        return text
    (contract,) = contracts
    said = {name: value for name, value in dataclasses.asdict(decode_contract(contract)).items() if value}
    contract_text = json.dumps(said, indent=1)
    return "\n".join(line.rstrip() for line in f"{text.rstrip()}\n\ncontract: {contract_text}\n".splitlines()) + "\n"


def torchx_version() -> str:
    for name in ("torchx", "torchx-nightly"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise AssertionError("no TorchX is installed")


@pytest.mark.parametrize("name", RUNS)
def test_each_scheduler_gets_the_request_that_is_kept(requests: dict[str, str], name: str) -> None:
    if lacks(name):
        pytest.skip(f"{lacks(name)} is not installed")
    kept = GOLDEN / torchx_release() / f"{name}.txt"
    if os.environ.get("RENEW_GOLDEN"):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(requests[name])
    if not kept.parent.is_dir():
        pytest.skip(f"no requests are kept for TorchX {torchx_version()}: RENEW_GOLDEN=1 writes them")
    assert requests[name] == kept.read_text()


def test_a_store_outside_the_container_gives_a_warning(requests: dict[str, str]) -> None:
    warned = {name for name, request in requests.items() if "may not be visible to jobs on" in request}
    assert warned == IN_CONTAINERS & set(requests)


def test_a_scheduler_that_takes_no_command_gets_the_request_as_typed(requests: dict[str, str]) -> None:
    if "aws_sagemaker" not in requests:
        pytest.skip("SageMaker's package is not installed")
    told, _, request = requests["aws_sagemaker"].partition("\n\n")
    assert told.endswith("starts the script by a launcher of its own, so no recorder can precede it")
    assert "torchx_cubicml" not in request


@pytest.mark.parametrize(
    ("mount", "kept"),
    [
        ("type=bind,src=/shared,dst=/shared", ("/shared",)),
        ("type=volume,src=claim,dst=/shared", ("/shared",)),
        ("type=bind,src=/shared,dst=/shared,readonly", ()),
        ("type=bind,src=/elsewhere,dst=/shared", ()),
        ("type=device,src=/dev/fuse,dst=/dev/fuse,perm=rw", ()),
    ],
    ids=["bind", "volume", "read only", "other path", "device"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_mount_that_a_store_can_be_in_is_known(mount: str, kept: tuple[str, ...]) -> None:
    launch = ComponentLaunch.parse(TORCHRUN, ["--script", "t.py", "--mounts", mount]).launch
    assert launch.mounted == kept


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_slurm_variables_keep_their_commas() -> None:
    component = ComponentLaunch.parse(TORCHRUN, ARGS)
    space = parse_space(SPACE, where="space.toml")
    config = {"micro_batch_size": 4, "algorithms": "ring,tree"}
    placed = place_config(component.launch, space, config, store="/shared/a,b", origin=Origin.TUNE)
    app = component.build(placed.launch, placed.contract)
    request = str(get_runner().dryrun(app, "slurm", cfg={}))
    line = next(line for line in request.splitlines() if line.startswith("srun "))
    srun = shlex.split(line.removesuffix("\\"))
    (exported,) = [word.removeprefix("--export=") for word in srun if word.startswith("--export=")]
    variables = dict(part.split("=", 1) for part in exported.split(",") if "=" in part)  # as Slurm reads it
    contract = decode_contract(variables[CONTRACT_VARIABLE])
    assert (contract.store, dict(contract.config), contract.log) == ("/shared/a,b", config, space.log)
    command = srun[srun.index("bash") + 2]
    assert "export NCCL_ALGO=ring,tree; exec torchrun" in command
    assert "train.py --batch_size 4 --n_layer 4" in command
