"""Memory that is freed between two batches and needed again in the next."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
# Activations of a batch are a few MiB each and are kept; a large picture, decoded, goes back to the system.
MMAP_BYTES = 2**26
TRIM_BYTES = 2**28


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks up to a bound; say whether it did.

    By default it gives each activation back to the system and gets it again, page by page, in the next layer: up to
    4 % of the time of a ViT-Ti/16 on a CPU (docs/experiments.md).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library, musl say
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
