from __future__ import annotations

from torchx_cubicml.recorder.host.memory import peak_memory_gib


def test_the_peak_grows_with_what_is_taken() -> None:
    before = peak_memory_gib()
    taken = bytearray(int((before + 0.05) * (1 << 30)))
    taken[::4096] = b"x" * len(taken[::4096])
    assert before > 0
    assert before + 0.04 < peak_memory_gib() < 2 * before + 1
