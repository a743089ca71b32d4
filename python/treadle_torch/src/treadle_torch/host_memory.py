"""Memory of the host for what is large and new, such as weights that arrive.

On huge pages where the system has them: to get small ones, each cleared as it is first touched, takes as long as gloo takes to fill them.
"""

from __future__ import annotations

import mmap

import torch

HUGE_BYTES = 2**21


def host_memory(num_bytes: int) -> torch.Tensor:
    """uint8, of no particular contents. The system has it back once no tensor is in it."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if num_bytes < HUGE_BYTES or advice is None:
        return torch.empty(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(advice)
    except OSError:
        pass  # a system without them
    return torch.frombuffer(memory, dtype=torch.uint8)
