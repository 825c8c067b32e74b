from __future__ import annotations

import pytest

from torchx_cubicml.recorder.attempt.rendezvous import hosts_rendezvous


@pytest.mark.parametrize(
    ("options", "ports", "is_hosted"),
    [
        ("", {29500}, True),
        ("--master_port 1234 --nnodes 2 --node_rank 0", {1234}, True),
        ("--master_port 1234 --nnodes 2 --node_rank 1", set(), False),
        ("--standalone", {40001}, True),
        ("--rdzv_backend c10d --rdzv_endpoint localhost:0", {40001}, True),
        ("--rdzv_backend c10d --rdzv_endpoint node0:1234", {1234, 40001}, True),
        ("--rdzv_backend c10d --rdzv_endpoint node0:1234", {40001}, False),
        ("--rdzv-backend=c10d --rdzv-endpoint=node0", {29400}, True),
        ("--rdzv-backend=c10d --rdzv-endpoint=node0", {40001}, False),
        ("--rdzv_backend c10d", {29400}, True),
        ("--rdzv_backend c10d --rdzv_conf store_type=file --rdzv_endpoint /tmp/rdzv", {29400}, False),
        ("--rdzv_backend etcd --rdzv_endpoint node0:2379", {29500}, False),
        ("--rdzv_backend etcd-v2 --rdzv_endpoint node0:2379", {29500}, False),
    ],
)
def test_who_hosts_the_rendezvous(options: str, ports: set[int], is_hosted: bool) -> None:
    assert hosts_rendezvous([*options.split(), "train.py", "--rdzv_backend", "etcd"], ports) == is_hosted


def test_options_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "node0:1234")
    assert not hosts_rendezvous(["train.py"], {29500})
    assert hosts_rendezvous(["train.py"], {1234})
