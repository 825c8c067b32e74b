"""Shows what Python gives to a program, then ends as its first argument says."""

import multiprocessing
import sys


def square(number):
    return number * number


def fail():
    try:
        raise KeyError("first")
    except KeyError as error:
        raise RuntimeError("second") from error


def report(kind, error, traceback):
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    print("own report", kind.__name__, frames, file=sys.stderr)


def main():
    how = sys.argv[1]
    names = sorted(name for name in globals() if name.startswith("__"))
    main_module = sys.modules["__main__"]
    spec = main_module.__spec__
    print(sys.argv, sys.path[0], __file__, main_module.__file__, spec and spec.name, type(__loader__).__name__, names)
    print(__annotations__, __builtins__.__name__, __doc__.splitlines()[0], __package__, main_module is not None)
    if how == "spawn":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(square, [2, 3]))
    if how == "raise":
        fail()
    if how == "own_hook":
        sys.excepthook = report
        fail()
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "exit":
        sys.exit(int(sys.argv[2]))
    if how == "exit_text":
        sys.exit("nothing to train on")
    if how == "import_error":
        import no_such_module_anywhere  # noqa: F401 - it fails


if __name__ == "__main__":
    main()
