"""``python -m torchx_cubicml.recorder -- script.py args``: what ``python script.py args`` does, recorded."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # -m put the working directory first; the program's own first entry takes its place before anything is imported.
        del sys.path[0]
    before = frozenset(sys.modules)
    from torchx_cubicml.recorder.start import main

    main(sys.argv[1:], before=before)
