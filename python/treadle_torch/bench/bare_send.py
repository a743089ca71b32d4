"""What gloo does alone: sends so many bytes from one process to another, as often as a line comes, and says how many seconds that took.

    python bare_send.py RANK FOLDER BYTES
"""

import datetime
import pathlib
import sys
import time

import torch
import torch.distributed as dist

BUCKET_BYTES = 64 * 2**20


def main() -> None:
    rank, folder, size = int(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = datetime.timedelta(seconds=300)
    options._threads = 2
    group = dist.ProcessGroupGloo(dist.FileStore(str(folder / "bare"), 2), rank, 2, options)
    data = torch.ones(size, dtype=torch.uint8)
    act = group.send if rank == 0 else group.recv
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.monotonic()
        works = [act([part], 1 - rank, 0) for part in data.split(BUCKET_BYTES)]
        for work in works:
            work.wait()
        print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main()
