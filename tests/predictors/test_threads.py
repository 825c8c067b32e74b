from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import threadpool_info

from torchx_cubicml.predictors import threads
from torchx_cubicml.predictors.threads import map_parallel, one_thread


def test_every_library_has_one_thread_inside_only() -> None:
    import sklearn.ensemble  # noqa: F401 - brings libraries of its own

    before = {library["filepath"]: library["num_threads"] for library in threadpool_info()}
    with one_thread():
        inside = [library["num_threads"] for library in threadpool_info()]
    assert inside
    assert set(inside) == {1}
    assert before == {library["filepath"]: library["num_threads"] for library in threadpool_info()}


_LOADED_MEANWHILE = """
import numpy
from threadpoolctl import threadpool_info
from torchx_cubicml.predictors.threads import one_thread

def threads():
    return {library["filepath"]: library["num_threads"] for library in threadpool_info()}

before = threads()
with one_thread():
    few = threads()
    import sklearn.ensemble
    with one_thread():
        more = threads()
    still = threads()
after = threads()
print(len(few) < len(more), {*few.values(), *more.values()} == {1}, still == more)
print(2 in after.values(), before.items() <= after.items())
"""


def test_a_library_loaded_inside_is_limited_by_the_next_context() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED_MEANWHILE],
        env={"OMP_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["True"] * 5


_TWO_AT_ONCE = """
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy
import sklearn.ensemble
from threadpoolctl import threadpool_info
from torchx_cubicml.predictors.threads import one_thread

def blas():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

def openmp():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "openmp"}

first_is_in, second_is_in, first_is_out, second_is_out = (threading.Event() for _ in range(4))
results = []

def first():
    with one_thread():
        first_is_in.set()
        second_is_in.wait(60)
    results.append(openmp() == {2})
    first_is_out.set()
    second_is_out.wait(60)  # the thread that set the limit is alive when the other one lifts it

def second():
    first_is_in.wait(60)
    with one_thread():
        second_is_in.set()
        first_is_out.wait(60)
        results.append(blas() == openmp() == {1})
    second_is_out.set()

results.append(blas() == openmp() == {2})
threads = [threading.Thread(target=each) for each in (first, second)]
for each in threads:
    each.start()
for each in threads:
    each.join()
results.append(blas() == openmp() == {2})
print(*results)
"""


def test_overlapping_contexts_hold_until_both_are_left() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TWO_AT_ONCE],
        env={"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["True"] * 4


def test_several_threads_work_with_one_library_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    both = threading.Barrier(2)

    def work(item: int) -> tuple[int, set[int]]:
        if item:
            both.wait(timeout=300)  # two are at work at once, or this breaks
        with one_thread():
            return item, {library["num_threads"] for library in threadpool_info()}

    before = threadpool_info()
    found = map_parallel(work, range(5))
    assert [item for item, _ in found] == list(range(5))
    assert all(numbers <= {1} for _, numbers in found)
    assert threadpool_info() == before


def test_cores_are_counted_without_an_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity")
    assert map_parallel(lambda item: item + 1, range(5)) == [1, 2, 3, 4, 5]


def test_an_error_of_another_thread_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        map_parallel(lambda item: 1 / (item - 3), range(5))


@pytest.mark.parametrize(("n_cores", "n_threads"), [(1, 1), (3, 3), (4, 4), (64, 4)])
def test_at_most_four_cores_are_used(monkeypatch: pytest.MonkeyPatch, n_cores: int, n_threads: int) -> None:
    made: list[int] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(n_cores) if process == 0 else None)
    monkeypatch.setattr(threads, "ThreadPoolExecutor", lambda count: made.append(count) or ThreadPoolExecutor(count))
    assert map_parallel(str, [1, 2, 3]) == ["1", "2", "3"]
    assert map_parallel(str, []) == []
    assert made == [n_threads] * 2


@pytest.mark.parametrize(("n_cores", "n_threads"), [(None, 1), (2, 2)])
def test_all_cores_count_without_an_affinity(
    monkeypatch: pytest.MonkeyPatch, n_cores: int | None, n_threads: int
) -> None:
    made: list[int] = []
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: n_cores)
    monkeypatch.setattr(threads, "ThreadPoolExecutor", lambda count: made.append(count) or ThreadPoolExecutor(count))
    assert map_parallel(str, [1]) == ["1"]
    assert made == [n_threads]


def test_the_first_item_is_worked_on_alone() -> None:
    done: list[int] = []

    def work(item: int) -> list[int]:
        before = list(done)
        done.append(item)
        return before

    first, *others = map_parallel(work, range(4))
    assert first == []
    assert all(each[:1] == [0] for each in others)
