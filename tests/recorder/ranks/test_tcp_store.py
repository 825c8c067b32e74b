from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed

from torchx_cubicml.recorder.ranks.tcp_store import connected
from torchx_cubicml.settings import read_job_environment

AGENT = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_the_agents_store_is_joined_as_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
    monkeypatch.setattr(torch.distributed, "TCPStore", lambda *args, **kwargs: calls.append((args, kwargs)))
    connected(read_job_environment(AGENT), within_s=2.5)
    given = {"is_master": False, "timeout": timedelta(seconds=2.5), "wait_for_workers": False}
    assert calls == [(("10.0.0.7", 29500), given)]


def test_without_an_agents_store_there_is_none() -> None:
    with pytest.raises(ConnectionError):
        connected(read_job_environment({}), within_s=1.0)
