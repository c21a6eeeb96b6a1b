"""Which bytes of a generated CUDA kernel's dynamic shared memory hold what, read off the source: no GPU, no compiler."""

from __future__ import annotations

import re

import numpy as np

BASE = re.compile(r"void\* (\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);")
LOOP = re.compile(r"for \(int (\w+) = 0; \1 < (\d+); \+\+\1\)")
#: A vector store from Q's tensor into shared memory: element type, buffer, element offset.
Q_STORE = re.compile(r"\*\(uint4\*\)\(\(\(bfloat16_t\*\)(\w+)\) \+ (.+?)\) = \*\(uint4\*\)\(Q \+")
#: What a vector atomic on dKV reads.
STAGED = re.compile(r"[Aa]tomicAddx4\(\(&\(dKV\[.+?\]\)\), \(&\(\(\(float\*\)(\w+)\)\[(.+)\]\)\)\);")
VECTOR_BYTES = 16


class Unread(ValueError):
    """The source is not of the form that this module reads."""


def offsets(text: str, loops: dict[str, int], threads: int) -> np.ndarray:
    """Every value of an index expression over the threads and the loops that it names."""
    names = sorted(name for name in loops if re.search(rf"\b{name}\b", text))
    axes = [np.arange(threads), *(np.arange(loops[name]) for name in names)]
    grid = np.meshgrid(*axes, indexing="ij", sparse=True)
    values = {"tid": grid[0], **dict(zip(names, grid[1:], strict=True))}
    plain = text.replace("((int)threadIdx.x)", "tid").replace("(int)threadIdx.x", "tid").replace("/", "//")
    if set(re.findall(r"[A-Za-z_]\w*", plain)) - values.keys():
        raise Unread(f"an index that names more than threads and loops: {text[:80]}")
    return np.unique(np.asarray(eval(plain, {"__builtins__": {}}, values)))  # noqa: S307: names and digits, checked above


def granules(matches: list[tuple[str, str]], source: str, threads: int, element_bytes: int) -> set[int]:
    """The bytes that vector accesses touch."""
    bases = {name: int(offset) for name, offset in BASE.findall(source)} | {"buf_dyn_shmem": 0}
    loops = {name: int(count) for name, count in LOOP.findall(source)}
    touched: set[int] = set()
    for buffer, index in matches:
        if buffer not in bases:
            raise Unread(f"a buffer without a place: {buffer}")
        for first in offsets(index, loops, threads) * element_bytes + bases[buffer]:
            touched.update(range(int(first), int(first) + VECTOR_BYTES))
    return touched


def bytes_of_q_and_staging(source: str, threads: int) -> tuple[set[int], set[int]]:
    """The bytes that are filled from Q, and those that the atomics on dKV read. Raises Unread where either cannot be found."""
    stores, staged = Q_STORE.findall(source), STAGED.findall(source)
    if not stores or not staged:
        raise Unread(f"{len(stores)} stores of Q and {len(staged)} atomics on dKV")
    return granules(stores, source, threads, 2), granules(staged, source, threads, 4)
