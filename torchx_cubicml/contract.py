"""What passes from the launcher to the job: one environment value, versioned and small.

Slurm cuts environment values at commas and some schedulers limit their length, so the value is url-safe base64 of
compressed JSON, at most ``MAX_BYTES`` long.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.errors import ContractError
from torchx_cubicml.trial import Origin, freeze_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.trial import Config, Value, Workload

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
        hooks: what the recorder sets in the job where the program has no flag for it, by the hook's name.
        trial_id: name of the trial where no scheduler gives one; empty where rank 0 chooses it.
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
    trial_id: str = ""
    hooks: Mapping[str, Value] = field(default_factory=dict)


def encode_contract(contract: Contract) -> str:
    """Return the environment value that carries ``contract``.

    Raises:
        ContractError: the value would be longer than ``MAX_BYTES``.

    >>> decode_contract(encode_contract(Contract(store="file:///tmp/store"))).store
    'file:///tmp/store'
    """
    payload = {"version": CONTRACT_VERSION, **asdict(contract)}
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"the launch contract holds a value that JSON has no word for: {error}") from error
    # An argument that is no UTF-8 reaches Python with surrogates, and passes through as it came.
    value = base64.urlsafe_b64encode(zlib.compress(text.encode(errors="surrogatepass"), 9)).decode("ascii")
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
    try:
        return Contract(
            store=_text(payload, "store"),
            workload=freeze_values(payload.get("workload", {}), where="contract.workload"),
            config=freeze_values(payload.get("config", {}), where="contract.config"),
            objective=_text(payload, "objective", "tokens_per_second"),
            origin=Origin(_text(payload, "origin", Origin.USER)),
            launch_id=_text(payload, "launch_id", ""),
            scheduler=_text(payload, "scheduler", ""),
            suggestion=_suggestion(payload.get("suggestion")),
            step_limit=_step_limit(payload.get("step_limit")),
            trial_id=_text(payload, "trial_id", ""),
            hooks=freeze_values(payload.get("hooks", {}), where="contract.hooks"),
        )
    except (ValueError, RecursionError) as error:
        raise ContractError(f"the launch contract is damaged: {error}") from error


def _unpack(value: str) -> dict[str, object]:
    if len(value) > MAX_BYTES:
        raise ContractError(f"the launch contract takes {len(value)} bytes, more than the {MAX_BYTES} that are legal")
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.urlsafe_b64decode(value.encode("ascii")), _MAX_JSON_BYTES)
        payload = json.loads(text) if inflate.eof else None
    except (ValueError, zlib.error, RecursionError) as error:
        raise ContractError(f"the launch contract is damaged: {error}") from error
    if not isinstance(payload, dict):
        raise ContractError("the launch contract is damaged: a whole JSON object is wanted")
    return payload


def _text(payload: Mapping[str, object], name: str, default: str | None = None) -> str:
    value = payload.get(name, default)
    if isinstance(value, str):
        return value
    raise ValueError(f"{name} must be a text, got {value!r:.60}")


def _suggestion(value: object) -> dict[str, object] | None:
    if value is None or isinstance(value, dict):
        return value
    raise ValueError(f"suggestion must be a JSON object, got {value!r:.60}")


def _step_limit(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"step_limit must be a whole number >= 1, got {value!r:.60}")
