"""Predictor chosen for a store, kept beside its events as a name that the reader looks up in a table."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.store.trial_store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.store.backend import Backend

_FOLDER = "choices"
_SCHEMA = 1
_MAX_NAME_LENGTH = 64


def append_choice(url: str, name: str, *, why: Mapping[str, object]) -> None:
    """Record the predictor chosen for the store at ``url``; the latest choice counts.

    Args:
        url: URL of the store.
        name: name of the predictor.
        why: grounds of the choice as JSON values, for people.

    Raises:
        StoreError: the store cannot be written.
    """
    now = datetime.now(UTC)
    data = json.dumps({"schema": _SCHEMA, "predictor": name, "why": dict(why)}).encode() + b"\n"
    _folder(url).publish(f"{now:%Y-%m-%d}", f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}.json", data)


def latest_choice(url: str) -> str:
    """Return the name of the latest choice; empty where there is none, or it is no legal name.

    Raises:
        StoreError: the store cannot be reached or read.
    """
    folder = _folder(url)
    for _, content in folder.read(folder.list_objects().places()[-1:]):
        return "" if isinstance(content, Exception) else _name(content)
    return ""


def _name(content: bytes) -> str:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    name = found.get("predictor") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name.isidentifier() and len(name) <= _MAX_NAME_LENGTH else ""


def _folder(url: str) -> Backend:
    return TrialStore(f"{url.rstrip('/')}/{_FOLDER}").folder
