"""A TCPStore in this process's memory, and a clock that only its readers move."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Clock:
    """Seconds that pass while somebody sleeps; ``events`` happen at their moments."""

    def __init__(self, events: dict[float, Callable[[], object]] | None = None) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []
        self._events = {self.now_s + after_s: event for after_s, event in (events or {}).items()}

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> bool:
        self.slept.append(seconds)
        self.now_s += seconds
        for moment in [moment for moment in self._events if moment <= self.now_s]:
            self._events.pop(moment)()
        return False


class MemoryStore:
    """What a TCPStore answers, without a server."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.values[key] for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        count = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(count).encode()
        return count

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        if self.values.get(key, b"") == expected.encode():
            self.values[key] = value.encode()
        return self.values.get(key, b"")
