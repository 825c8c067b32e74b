"""``python -m torchx_cubicml.recorder -- script.py args``: what ``python script.py args`` does, recorded."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # -m put the working directory first; the program's own first entry takes its place before anything is imported.
        del sys.path[0]
    before, path = frozenset(sys.modules), list(sys.path)
    # Ours are to meet the library's own modules, whatever lies on PYTHONPATH.
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    sys.path.sort(key=lambda entry: entry not in {library, f"{library}/lib-dynload"})
    from torchx_cubicml.recorder.start import main

    main(sys.argv[1:], before=before, path=path)
