"""What ``python -m torchx_cubicml.recorder`` does, with the arguments that rank 0 has chosen for all ranks."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # -m put the working directory first; the program's own first entry takes its place before anything is imported.
        del sys.path[0]
    before = frozenset(sys.modules)
    from torchx_cubicml.decision.rank import settle
    from torchx_cubicml.recorder.start import main

    main(settle(sys.argv[1:]), before=before)
