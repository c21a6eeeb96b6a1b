"""A torch.cuda without a GPU: tensors of cuda:0 lie on the CPU, and Triton's kernels run in its interpreter. Imported by a .pth file."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"


def emulate(torch: Any) -> None:
    """Takes every device cuda:N for the CPU, and answers what subject_runtime.py asks of torch.cuda."""

    def on_cpu(value: Any) -> Any:
        named = str(value) if isinstance(value, str | torch.device) else ""
        return torch.device("cpu") if named.startswith("cuda") else value

    class OnTheCpu(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*map(on_cpu, args), **{name: on_cpu(value) for name, value in (kwargs or {}).items()})

    OnTheCpu().__enter__()
    for name in ("set_device", "synchronize", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        setattr(torch.cuda, name, lambda *_: 0)
    torch.cuda.get_device_name = lambda *_: "Emulated GPU"


class AfterTorch(importlib.abc.MetaPathFinder):
    """Calls `emulate` once torch is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        run = spec.loader.exec_module

        def run_and_emulate(module: Any) -> None:
            run(module)
            emulate(module)

        spec.loader.exec_module = run_and_emulate
        return spec


sys.meta_path.insert(0, AfterTorch())
