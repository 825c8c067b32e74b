from __future__ import annotations

from threadpoolctl import threadpool_info

from torchx_cubicml.predictors.threads import one_thread


def test_every_library_works_with_one_thread_inside_and_as_before_outside() -> None:
    with one_thread():
        inside = [library["num_threads"] for library in threadpool_info()]
    assert inside
    assert set(inside) == {1}
    before = {library["filepath"]: library["num_threads"] for library in threadpool_info()}
    with one_thread():
        pass
    assert before == {library["filepath"]: library["num_threads"] for library in threadpool_info()}
