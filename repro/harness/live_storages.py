"""The memory of torch's storages while a block of code runs, on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """Bytes of the storages that came to life while open and are alive: now, and at most. Storages of `operands` are left out."""

    def __init__(self, *operands: torch.Tensor) -> None:
        super().__init__()
        self.operands = {StorageWeakRef(t.untyped_storage()) for t in operands}
        self.live: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {StorageWeakRef(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if (ref := StorageWeakRef(storage)) not in given | self.operands:
                    self.live[ref] = storage.nbytes()
        self.peak = max(self.peak, self.now())
        return result

    def now(self) -> int:
        self.live = {ref: size for ref, size in self.live.items() if not ref.expired()}
        return sum(self.live.values())
