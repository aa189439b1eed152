"""The processor instructions that oneDNN, which computes torch's matrix products on CPUs, may use. No torch."""

import contextlib
import ctypes
import mmap
import os
import platform
import sys
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
# All of AVX-512 with bf16 and fp16, without AMX.
BELOW_AMX = "AVX512_CORE_FP16"
TILE_LEAF = 0x1D
# int leaf(int leaf, int subleaf): push rbx; mov eax, edi; mov ecx, esi; cpuid; pop rbx; ret
CPUID_CODE = bytes.fromhex("53 89f8 89f1 0fa2 5b c3")


def avoid_unusable_tiles() -> None:
    """Keep oneDNN from using AMX if the processor reports no tile palette for it; call before the first product.

    Hypervisors that hide CPUID leaf 0x1D cause this. The oneDNN of torch 2.13 then configures empty tiles, and the
    first product in bf16 kills the process with SIGILL (uxlfoundation/oneDNN#5801). An existing limit is kept.
    """
    if LIMIT not in os.environ and announces_tiles() and largest_tile_palette() == 0:
        os.environ[LIMIT] = BELOW_AMX


def announces_tiles() -> bool:
    """Whether Linux lists AMX tiles among the features of the processor."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        return any(line.startswith("flags") and " amx_tile" in line for line in lines)
    return False


def largest_tile_palette() -> int | None:
    """Return the largest tile palette of the processor, 0 if it reports none, None if it cannot be queried."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # the system forbids memory that is both written and executed
        return None
    page.write(CPUID_CODE)
    view = ctypes.c_char.from_buffer(page)
    leaf = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(ctypes.addressof(view))
    return leaf(TILE_LEAF, 0)
