"""The one place that says how numba kernels are compiled: cached on disk, with the GIL released.

Numba itself takes a cached kernel for current while the file that defines it has not changed, even when a kernel that
it calls, or a constant that it reads, has changed in another file. Here it also depends on the contents of every
file of the package that its own file imports, directly or not; on contents only, so a fresh checkout stays warm.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")

_ROOT = Path(__file__).parent
_IMPORT = re.compile(rf"^from {re.escape(__name__.rpartition('.')[0])}\.([\w.]+) import ", re.MULTILINE)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` with numba: nopython, cached, GIL released, IEEE arithmetic (same seed, same run).

    Where no folder for a cache can be written, every process compiles for itself.
    """
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no place for a cache
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:  # else nothing is cached, or compilation is switched off
        # As part of numba's version, which is compared first: the rest of an index may name classes that are gone.
        cache_file._version = f"{numba.__version__} {source_stamp(Path(function.__code__.co_filename))}"
        cache_file._source_stamp = None
    return cast("Callable[P, R]", compiled)


@cache
def source_stamp(file: Path) -> str:
    """A digest of this file and of every file of the package that it imports, directly or through others."""
    found, waiting = {file}, [file]
    while waiting:
        for module in _IMPORT.findall(waiting.pop().read_text(encoding="utf-8")):
            imported = _file_of(module)
            if imported not in found:
                found.add(imported)
                waiting.append(imported)
    digest = hashlib.sha256()
    for one in sorted(found):
        digest.update(one.read_bytes())
    return digest.hexdigest()


def _file_of(module: str) -> Path:
    """The file of a module, named from within the package."""
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
