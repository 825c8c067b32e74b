"""What passes from the launcher to the job: one environment value, versioned and small.

Slurm cuts environment values at commas and some schedulers limit their length, so the value is url-safe base64 of
compressed JSON, at most ``MAX_BYTES`` long.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from torchx_cubicml.errors import ContractError
from torchx_cubicml.trial import Origin, freeze_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.trial import Config, Workload

CONTRACT_VARIABLE = "TORCHX_CUBICML_LAUNCH"
CONTRACT_VERSION = 1
MAX_BYTES = 6 * 1024
_MAX_JSON_BYTES = 1024 * 1024  # a hostile value must not inflate without bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a job must know of the launch that it belongs to.

    Args:
        store: absolute URL of the store that the job writes to.
        workload: facts that identify the workload, read from the command.
        config: requested config: what the command asks for after rewriting.
        objective: name of the throughput maximised.
        origin: who chose the config.
        launch_id: joins the trial with the ``planned`` event that ``tune`` wrote; empty elsewhere.
        scheduler: name of the TorchX scheduler, empty where unknown.
        suggestion: what was promised for the config (predicted throughput, interval, reason), as JSON values.
        step_limit: optimizer steps after which a profiling launch ends; ``None`` for an ordinary launch.
    """

    store: str
    workload: Workload = field(default_factory=dict)
    config: Config = field(default_factory=dict)
    objective: str = "tokens_per_second"
    origin: Origin = Origin.USER
    launch_id: str = ""
    scheduler: str = ""
    suggestion: Mapping[str, object] | None = None
    step_limit: int | None = None


def encode_contract(contract: Contract) -> str:
    """Return the environment value that carries ``contract``.

    Raises:
        ContractError: the value would be longer than ``MAX_BYTES``.

    >>> decode_contract(encode_contract(Contract(store="file:///tmp/store"))).store
    'file:///tmp/store'
    """
    payload = {"version": CONTRACT_VERSION, **asdict(contract)}
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    value = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode("ascii")
    if len(value) > MAX_BYTES:
        raise ContractError(f"the launch contract takes {len(value)} bytes, more than the {MAX_BYTES} that are legal")
    return value


def decode_contract(value: str) -> Contract:
    """Return the contract that the environment value carries.

    Raises:
        ContractError: the value is damaged, or written by another contract version.
    """
    payload = _unpack(value)
    version = payload.pop("version", None)
    if version != CONTRACT_VERSION:
        raise ContractError(f"the launch contract has version {version!r}; this recorder reads {CONTRACT_VERSION}")
    known = {item.name for item in fields(Contract)}
    values = {name: value for name, value in payload.items() if name in known}
    try:
        values["origin"] = Origin(values.get("origin", Origin.USER))
        for name in ("workload", "config"):
            values[name] = freeze_values(values.get(name, {}), where=f"contract.{name}")
        return Contract(**values)
    except (TypeError, ValueError) as error:
        raise ContractError(f"the launch contract is damaged: {error}") from error


def _unpack(value: str) -> dict[str, object]:
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.urlsafe_b64decode(value.encode("ascii")), _MAX_JSON_BYTES)
        payload = json.loads(text)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ContractError(f"the launch contract is damaged: {error}") from error
    if not isinstance(payload, dict):
        raise ContractError("the launch contract is damaged: a JSON object is wanted")
    return payload
