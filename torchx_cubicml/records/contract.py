"""Launch contract: all that the launcher passes to the job, encoded as one small, versioned environment value.

Slurm cuts environment values at commas, and some schedulers limit their length. The value is therefore URL-safe base64
of compressed JSON, at most ``MAX_BYTES`` long.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import ContractError
from torchx_cubicml.records.json_fields import items_of, object_of, text_of, texts_of
from torchx_cubicml.records.log_pattern import LogPattern
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.records.values import freeze_value, freeze_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Config, Value, Workload

CONTRACT_VARIABLE = "TORCHX_CUBICML_LAUNCH"
SECOND_ATTEMPT_VARIABLE = "TORCHX_CUBICML_SECOND_ATTEMPT"
"""Variable with the contract of the user's own command, for a rewritten launch that fails early."""
CONTRACT_VERSION = 1
MAX_BYTES = 6 * 1024
_MAX_JSON_BYTES = 1024 * 1024  # a hostile value must not inflate without bound


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """Changes to a config file, made in the job's own copy of it.

    Args:
        path: path of the file, as in the command.
        argument: position of the program's argument that ends in the path; ``None`` where a variable holds it.
        variable: name of that environment variable; empty where an argument names the file.
        digest: digest of the file's bytes as the launcher read them; a file with another digest is left alone.
        values: pairs of key, outermost name first, and new value.
    """

    path: str
    argument: int | None = None
    variable: str = ""
    digest: str = ""
    values: tuple[tuple[tuple[str, ...], Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedCommand:
    """User's original command: the fallback of a job that cannot change its config files, or goes on as typed.

    Args:
        args: program arguments as typed.
        env: changed variables with their values as typed; ``None`` where a variable was unset.
        config: config of the command as typed.
    """

    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    config: Config = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Launch facts that a job needs to record its trial.

    Args:
        store: absolute URL of the store that the job writes to.
        workload: facts that identify the workload, read from the command.
        config: requested config, after rewriting of the command.
        objective: name of the throughput maximised.
        origin: source of the config.
        launch_id: joins the trial with the ``planned`` event of ``tune``; empty for other launches.
        scheduler: name of the TorchX scheduler; empty where unknown.
        suggestion: prediction for the config (throughput, interval, reason), as JSON values.
        step_limit: optimizer steps after which a profiling launch ends; ``None`` for an ordinary launch.
        hooks: hook name -> value that the recorder sets in the job, where the program has no flag for it.
        checked_hooks: hook name -> the program's own value: the recorder finds out whether it could set another one.
        trial_id: name of the trial where the scheduler gives none; empty where rank 0 chooses it.
        files: config files of which the job reads a changed copy.
        log: user-defined log format of the program; ``None`` where none is declared.
        as_typed: fallback where ``files`` cannot be applied, or a launch without second attempt goes on with a training
            of another config; else ``None``.
        refused: reason why the job runs as typed although another config was requested; empty otherwise.
        is_second_attempt: whether the job runs as typed after its rewritten command has failed.
        variables: names of the command's environment variables whose values are recorded as digests.
        program: digest of the program's file as the launcher read it; empty where it read none.
        provenance: source of the launch as the launcher knows it: see ``Trial``.
        kept_variables: names of the environment variables that are kept with the command; ``None`` where the record
            keeps no command.
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
    checked_hooks: Mapping[str, Value] = field(default_factory=dict)
    files: tuple[FilePatch, ...] = ()
    as_typed: TypedCommand | None = None
    log: LogPattern | None = None
    refused: str = ""
    is_second_attempt: bool = False
    variables: tuple[str, ...] = ()
    program: str = ""
    provenance: Mapping[str, Value] = field(default_factory=dict)
    kept_variables: tuple[str, ...] | None = None

    def typed(self) -> Contract:
        """Return the contract of this launch with the user's original command."""
        command = self.as_typed or TypedCommand(config=self.config)
        return replace(
            self, config=command.config, origin=Origin.USER, suggestion=None, files=(), hooks={}, as_typed=None
        )


def encode_contract(contract: Contract) -> str:
    """Encode a contract as an environment value.

    Raises:
        ContractError: the value would be longer than ``MAX_BYTES``.

    >>> decode_contract(encode_contract(Contract(store="file:///tmp/store"))).store
    'file:///tmp/store'
    """
    payload = {"version": CONTRACT_VERSION, **asdict(contract)}
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"the launch contract holds a value that JSON cannot represent: {error}") from error
    # Python represents an argument that is not UTF-8 with surrogates; they are preserved.
    value = base64.urlsafe_b64encode(zlib.compress(text.encode(errors="surrogatepass"), 9)).decode("ascii")
    if len(value) > MAX_BYTES:
        raise ContractError(f"the launch contract has {len(value)} bytes; the limit is {MAX_BYTES}")
    return value


def decode_contract(value: str) -> Contract:
    """Decode the contract of an environment value.

    Raises:
        ContractError: the value is damaged or of another contract version.
    """
    payload = _unpack(value)
    version = payload.pop("version", None)
    if version != CONTRACT_VERSION:
        raise ContractError(f"the launch contract has version {version!r}; this recorder reads {CONTRACT_VERSION}")
    try:
        return Contract(
            store=text_of(payload.get("store"), "store"),
            workload=freeze_values(payload.get("workload", {}), where="contract.workload"),
            config=freeze_values(payload.get("config", {}), where="contract.config"),
            objective=text_of(payload.get("objective", "tokens_per_second"), "objective"),
            origin=Origin(text_of(payload.get("origin", Origin.USER), "origin")),
            launch_id=text_of(payload.get("launch_id", ""), "launch_id"),
            scheduler=text_of(payload.get("scheduler", ""), "scheduler"),
            suggestion=_object_or_none(payload.get("suggestion"), "suggestion"),
            step_limit=_step_limit(payload.get("step_limit")),
            trial_id=text_of(payload.get("trial_id", ""), "trial_id"),
            log=_log(payload.get("log")),
            hooks=freeze_values(payload.get("hooks", {}), where="contract.hooks"),
            checked_hooks=freeze_values(payload.get("checked_hooks", {}), where="contract.checked_hooks"),
            files=tuple(map(_patch, items_of(payload.get("files") or [], "files"))),
            as_typed=_as_typed(payload.get("as_typed")),
            refused=text_of(payload.get("refused", ""), "refused"),
            is_second_attempt=payload.get("is_second_attempt") is True,
            variables=texts_of(payload.get("variables") or [], "variables"),
            program=text_of(payload.get("program", ""), "program"),
            provenance=freeze_values(payload.get("provenance", {}), where="contract.provenance"),
            kept_variables=_names_or_none(payload.get("kept_variables")),
        )
    except (ValueError, RecursionError) as error:
        raise ContractError(f"the launch contract is damaged: {error}") from error


def _unpack(value: str) -> dict[str, object]:
    if len(value) > MAX_BYTES:
        raise ContractError(f"the launch contract has {len(value)} bytes; the limit is {MAX_BYTES}")
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.urlsafe_b64decode(value.encode("ascii")), _MAX_JSON_BYTES)
        payload = json.loads(text) if inflate.eof else None
    except (ValueError, zlib.error, RecursionError) as error:
        raise ContractError(f"the launch contract is damaged: {error}") from error
    if not isinstance(payload, dict):
        raise ContractError("the launch contract is damaged: not a complete JSON object")
    return payload


def _object_or_none(value: object, name: str) -> dict[str, object] | None:
    return None if value is None else object_of(value, name)


def _names_or_none(value: object) -> tuple[str, ...] | None:
    return None if value is None else texts_of(value, "kept_variables")


def _step_limit(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"step_limit must be a whole number >= 1, got {value!r:.60}")


def _patch(value: object) -> FilePatch:
    payload = object_of(value, "a file")
    argument = payload.get("argument")
    if argument is not None and (isinstance(argument, bool) or not isinstance(argument, int) or argument < 0):
        raise ValueError(f"argument must be a position, got {argument!r:.60}")
    values = []
    for pair in items_of(payload.get("values") or [], "values"):
        key, content = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if not isinstance(key, list) or not key or not all(isinstance(name, str) for name in key):
            raise ValueError(f"values must be pairs of key and value, got {pair!r:.60}")
        values.append((tuple(map(str, key)), freeze_value(content, where="contract.files")))
    return FilePatch(
        path=text_of(payload.get("path"), "path"),
        argument=argument,
        variable=text_of(payload.get("variable", ""), "variable"),
        digest=text_of(payload.get("digest", ""), "digest"),
        values=tuple(values),
    )


def _as_typed(value: object) -> TypedCommand | None:
    if value is None:
        return None
    payload = object_of(value, "as_typed")
    args, env = texts_of(payload.get("args") or [], "as_typed.args"), object_of(payload.get("env") or {}, "env")
    if not all(content is None or isinstance(content, str) for content in env.values()):
        raise ValueError("as_typed.env must hold strings")
    return TypedCommand(
        args=args,
        env={name: None if content is None else str(content) for name, content in env.items()},
        config=freeze_values(payload.get("config", {}), where="contract.as_typed"),
    )


def _log(value: object) -> LogPattern | None:
    if value is None:
        return None
    pattern, groups = (value.get("pattern"), value.get("groups")) if isinstance(value, dict) else (None, None)
    if not isinstance(pattern, str) or not isinstance(groups, dict):
        raise ValueError(f"log must hold a pattern and its groups, got {value!r:.60}")
    return LogPattern(pattern=pattern, groups=groups)
