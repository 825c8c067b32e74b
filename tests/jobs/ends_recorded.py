"""Raises on rank 1, in a main that writes torchrun's error file."""

import os

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")


if __name__ == "__main__":
    main()
