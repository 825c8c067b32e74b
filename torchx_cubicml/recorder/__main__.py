"""Entry point: ``python -m torchx_cubicml.recorder -- script.py args`` runs ``python script.py args``, recorded."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    before = frozenset(sys.modules)
    from torchx_cubicml.recorder.process.import_path import put_library_first

    path = put_library_first()
    from torchx_cubicml.recorder.start import main

    main(sys.argv[1:], before=before, path=path)
