"""Entry point of the recorder with the arguments that rank 0 has chosen for all ranks."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    before = frozenset(sys.modules)
    from torchx_cubicml.recorder.process.import_path import put_library_first

    path = put_library_first()
    from torchx_cubicml.recorder.start import main
    from torchx_cubicml.rewrite.in_job.rank import settle

    main(settle(sys.argv[1:]), before=before, path=path)
