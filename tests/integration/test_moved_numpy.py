# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Arrays of NumPy in the heap of Debian's python3, which is linked to fixed addresses: their types
lie in a module that python3 loads, with libraries of its own. After each kill the heap has grown by
an array of ARRAY_MB. Only where python3-numpy is installed."""

import os
import signal
import subprocess

import pytest
from conftest import run, said

PYTHON = "/usr/bin/python3"
# Small ones are found again in the same way; 200 MB take longer to compare.
MEGABYTES = int(os.environ.get("ARRAY_MB", "20"))
PROGRAM = f"""
import ctypes, os, signal
import numpy
numbers = {MEGABYTES << 17}
libc = ctypes.CDLL(None)
libc.pmalloc_get_root.restype = ctypes.c_void_p
libc.pmalloc_get_root.argtypes = [ctypes.c_uint]
libc.pmalloc_set_root.argtypes = [ctypes.c_uint, ctypes.c_void_p]
right = kept = 0
while at := libc.pmalloc_get_root(kept):
    array = ctypes.cast(at, ctypes.py_object).value
    right += type(array) is numpy.ndarray and array.size == numbers and array[7] == 7 + kept
    right += bool((array + 1 == numpy.arange(kept + 1, kept + 1 + numbers, dtype=float)).all())
    kept += 1
array = numpy.arange(kept, kept + numbers, dtype=float)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
libc.pmalloc_set_root(kept, id(array))
print(kept, right, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("randomize", [None, "1"])
def test_arrays_are_right(heap, randomize, monkeypatch):
    done = subprocess.run([PYTHON, "-c", "import numpy"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("python3-numpy is missing, which scripts/bootstrap does not install")
    monkeypatch.setenv("PYTHONMALLOC", "malloc")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    for kept in range(8):
        done = run([PYTHON, "-c", PROGRAM], HEAP=heap, RANDOMIZE=randomize if kept != 5 else None)
        assert done.returncode == -signal.SIGKILL, said(done)
        assert done.stdout == f"{kept} {2 * kept}\n", said(done)
