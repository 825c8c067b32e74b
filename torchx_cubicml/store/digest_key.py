"""Key of the digests in a store, kept beside its events: random, made by the first writer, and in no export."""

from __future__ import annotations

import json
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.store.trial_store import TrialStore

if TYPE_CHECKING:
    from torchx_cubicml.store.backend import Backend

_FOLDER = "digest-key"
_SCHEMA = 1
_MOST_KEYS = 16  # each present text has a digest with each key
_KEY = re.compile(r"[0-9a-f]{32}")


def digest_keys(url: str) -> tuple[str, ...]:
    """Return the keys of the store at ``url``; none where it has none.

    New digests are made with the first one. There are several where two first writers each made one, or where the files
    of two stores were copied into one.

    Raises:
        StoreError: the store cannot be reached or read.
    """
    return _keys(_folder(url))


def made_digest_key(url: str) -> str:
    """Return the first key of the store at ``url``, and make one where there is none.

    Raises:
        StoreError: the store cannot be read or written.
    """
    folder = _folder(url)
    if found := _keys(folder):
        return found[0]
    now, key = datetime.now(UTC), secrets.token_hex(16)
    data = json.dumps({"schema": _SCHEMA, "key": key}).encode() + b"\n"
    folder.publish(f"{now:%Y-%m-%d}", f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}.json", data)
    return next(iter(_keys(folder)), key)


def _keys(folder: Backend) -> tuple[str, ...]:
    contents = (content for _, content in folder.read(folder.list_objects().places()))
    keys = (_key(content) for content in contents if not isinstance(content, Exception))
    return tuple(dict.fromkeys(filter(None, keys)))[:_MOST_KEYS]


def _key(content: bytes) -> str:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    key = found.get("key") if isinstance(found, dict) else None
    return key if isinstance(key, str) and _KEY.fullmatch(key) else ""


def _folder(url: str) -> Backend:
    return TrialStore(f"{url.rstrip('/')}/{_FOLDER}").folder
