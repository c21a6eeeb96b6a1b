"""Answers batches of cases with one Python function: `call.py PLAN.json WORK DEVICE`, started by explore_function.

PLAN.json: {"target": "module:function", "gradients": [...], "arguments": [...]}. Each line on stdin asks for the cases that lie in
WORK (form: repro/harness/README.md); a line on descriptor 3 says that they are answered. Where the function cannot be called at all,
WORK/refused.json says why. Modules are looked for in the current folder first, as `python -m` does.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAYS = 3
PR_SET_PDEATHSIG, SIGKILL = 1, 9
OVER, BROKEN = 70, 71  # exit codes of a child


class Refused(Exception):
    """Why no case can be asked; `is_usage` tells wrong words from what this interpreter lacks."""

    def __init__(self, why: str, is_usage: bool) -> None:
        super().__init__(why)
        self.is_usage = is_usage


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def check_module(target: str) -> None:
    """Raises Refused where no such module is there, before the import of torch, which takes seconds."""
    top = target.partition(":")[0].partition(".")[0]
    if top != "torch" and importlib.util.find_spec(top) is None:
        raise Refused(f"{target}: no module '{top}' in {Path.cwd()} or on PYTHONPATH; start in its folder", True)


def function_of(target: str) -> Callable[..., Any]:
    """The function that `module:function` names. Raises Refused."""
    name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name and (name == e.name or name.startswith(e.name + ".")):
            raise Refused(f"{target}: no module '{e.name}'", True) from e
        raise Refused(f"{target}: the module needs '{e.name}', which {sys.executable} has not; name another with --python", True) from e
    except BaseException as e:
        raise Refused(f"{target}: the module cannot be imported: {first_line(e)}", True) from e
    for part in path.split("."):
        if not hasattr(found, part):
            names = [one for one in dir(found) if not one.startswith("_") and callable(getattr(found, one))]
            raise Refused(f"{target}: no '{part}' in {name}; it has {', '.join(names[:12]) or 'no function'}", True)
        found = getattr(found, part)
    if not callable(found):
        raise Refused(f"{target}: is no function", True)
    return found


def outputs_of(made: Any) -> dict[str, Any]:
    """What a function returned, by name: `output`, `output_0` ... of a sequence, the keys of a dict."""
    import torch

    if isinstance(made, torch.Tensor):
        return {"output": made}
    if isinstance(made, dict):
        named = {str(name): value for name, value in made.items()}
    elif isinstance(made, tuple | list):
        named = {f"output_{i}": value for i, value in enumerate(made) if value is not None}
    else:
        named = {"output": made}
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is of type {type(value).__name__}, not a tensor")
    return named


class Caller:
    """The function of a plan, as subject_runtime runs a subject."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.gradients, self.arguments = plan["gradients"], plan["arguments"]
        self.function = function_of(plan["target"])
        self.PACKAGE = plan["target"].partition(":")[0].partition(".")[0]

    def run(self, case: Any) -> dict[str, Any]:
        """Outputs, and as grad_<tensor> the gradients of the first output by each tensor of `gradients`."""
        import torch

        torch.manual_seed(0)
        tensors = {name: tensor.detach() for name, tensor in case.tensors.items() if name != "grad_output"}
        for name in self.gradients:
            tensors[name].requires_grad_()
        arguments = {name: case.axes[name] for name in self.arguments if name in case.axes}
        try:
            outputs = outputs_of(self.function(**tensors, **arguments))
            if self.gradients:
                outputs |= self.backward(outputs, tensors, case)
        except NotImplementedError as e:
            raise sys.modules["subject_runtime"].Unsupported((str(e).splitlines() or [""])[0][:160]) from e
        return outputs

    def backward(self, outputs: dict[str, Any], tensors: dict[str, Any], case: Any) -> dict[str, Any]:
        """The gradients of the last of `backwards` calls, with grad_output laid out as the judge made it."""
        import torch

        inputs = [tensors[name] for name in self.gradients]
        first, times = next(iter(outputs.values())), case.axes.get("backwards", 1)
        for i in range(times):
            made = torch.autograd.grad(first, inputs, case.tensors["grad_output"], retain_graph=i + 1 < times, allow_unused=True)
        kept = zip(self.gradients, inputs, made, strict=True)
        return {f"grad_{name}": torch.zeros_like(leaf) if grad is None else grad for name, leaf, grad in kept}


def opened(plan: dict[str, Any], device: str, runtime: Any) -> None:
    """Gives the function of a plan to the runtime that feeds it. Raises Refused."""
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f"{device}: the torch of {sys.executable} has no GPU; try --device cpu", False)
    caller = Caller(plan)
    runtime.load_subject = lambda _: caller


def runtime_of(plan: dict[str, Any]) -> Any:
    """repro/harness/subject_runtime.py, and with it torch. Raises Refused."""
    check_module(plan["target"])
    sys.path.append(str(Path(__file__).resolve().parents[1] / "harness"))
    try:
        return importlib.import_module("subject_runtime")
    except ImportError as e:
        raise Refused(f"{sys.executable}: {e}; name an interpreter or venv that has torch with --python", False) from e


def ends_with_its_parent() -> None:
    """A function that hangs must not outlive the search."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


def answer(plan: dict[str, Any], work: Path, device: str, asks: int, runtime: Any) -> int:
    """Answers until nothing more is asked (OVER) or the context of the GPU is broken (BROKEN)."""
    ends_with_its_parent()
    opened(plan, device, runtime)
    os.write(SAYS, b"ready\n")
    while os.read(asks, 64):
        runtime.main(Path(__file__), work)
        os.write(SAYS, b"done\n")
        if device != "cpu" and not runtime.works(device):
            return BROKEN
    return OVER


def child(work: Path, run: Callable[[], int]) -> int:
    """`run` in a process of its own; what that ended with. Why it refused goes to refused.json."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        code = run()
    except Refused as e:
        (work / "refused.json").write_text(json.dumps({"why": str(e), "is_usage": e.is_usage}))
        code = OVER
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(plan_file: Path, work: Path, device: str) -> int:
    """Imports torch once, then has a child answer; one that ends is followed by another, which takes milliseconds."""
    ends_with_its_parent()
    os.set_inheritable(SAYS, False)
    asks = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[0] = os.getcwd()
    plan = json.loads(plan_file.read_text())
    try:
        runtime = runtime_of(plan)
    except Refused as e:
        (work / "refused.json").write_text(json.dumps({"why": str(e), "is_usage": e.is_usage}))
        return 0
    # Nothing was computed before the fork: a pool of threads or a context of a GPU does not survive it.
    while (code := child(work, lambda: answer(plan, work, device, asks, runtime))) != OVER:
        if code != BROKEN:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
            os.write(SAYS, f"ended {how}\n".encode())
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
