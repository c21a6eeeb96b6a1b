#!/usr/bin/env python3
"""Runs one pack's subject.py over the cases of a work folder: `subject_runtime.py SUBJECT.py WORK`.

Reads `inputs.safetensors` and `cases.json`, writes `outputs.safetensors` and `subject.json` (forms: README.md beside
this file). Needs the standard library and torch alone, because the upstream's environment may hold nothing else. A case that
raises is an answer; the exit status is 0 as long as both files could be written.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Unsupported(Exception):
    """Raised by a subject whose release has no such feature; the text is the reason."""


@dataclass
class Case:
    """One case: its axes and its input tensors, on the device, strides and offsets as the judge made them.

    `numbers` is the subject's to fill: at most 16 amounts that go into the record as it says them. `guarded` holds the whole
    storage of each input that lies between guard bands, and the length of a band. `modules` is the scenario's. Of a case at several
    ranks (axis `ranks`, or the subject's RANKS) `rank` is this process's own.
    """

    name: str
    axes: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    device: str
    numbers: dict[str, float] = field(default_factory=dict)
    guarded: dict[str, tuple[torch.Tensor, int]] = field(default_factory=dict)
    batch: Batch | None = None
    modules: list[Any] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.batch.rank if self.batch else 0

    @property
    def num_ranks(self) -> int:
        return self.batch.num_ranks if self.batch else 1

    def module(self, module: Any) -> Any:
        """The module that the subject goes on with: its scenario may copy it, tie a parameter of it or evaluate it between steps."""
        from scenarios import MODULES  # here: as in main

        change = MODULES.get(self.axes.get("scenario"))
        return change(self, module) if change else module

    def fresh(self) -> Case:
        """The same case on tensors of its own."""
        return self.batch.case(self.name)

    def other(self) -> Case:
        """The same case on half the floating values."""
        return self.batch.case(self.name, times=0.5)

    def neighbour(self, *same: str) -> Case:
        """Of the cases of the process that are not much larger, and have the case's axes `same`, the one that differs in most axes; the
        same case where it is alone."""
        names = list(self.batch.entries)
        at = names.index(self.name)
        size = self.batch.size_of(self.name)
        near = [name for name in names[at + 1 :] + names[:at] if self.batch.size_of(name) <= 4 * size]
        near = [name for name in near if all(self.batch.entries[name]["axes"].get(key) == self.axes.get(key) for key in same)]

        def num_other_axes(name: str) -> int:
            axes = self.batch.entries[name]["axes"]
            return sum(self.axes.get(key) != axes.get(key) for key in (self.axes.keys() | axes.keys()) - {"scenario"})

        return self.batch.case(max(near, key=num_other_axes, default=self.name))

    def bands(self) -> dict[str, torch.Tensor]:
        """The guard bands of each guarded input as they are now: [2, length], before and after its storage."""
        return {name: torch.stack([flat[:length], flat[-length:]]) for name, (flat, length) in self.guarded.items()}


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a file that the judge wrote, on the CPU."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name] = flat.view(entry["shape"])
    return tensors


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes tensors (made contiguous, on the CPU); the file appears whole or not at all."""
    header: dict[str, Any] = {}
    parts, at = [], 0
    for name, tensor in tensors.items():
        kept = tensor.detach().cpu().contiguous()
        part = ctypes.string_at(kept.data_ptr(), kept.numel() * kept.element_size()) if kept.numel() else b""
        header[name] = {
            "dtype": NAMES[kept.dtype],
            "shape": list(kept.shape),
            "data_offsets": [at, at + len(part)],
        }
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as out:
        out.writelines([struct.pack("<Q", len(text)), text, *parts])
    os.replace(partial, path)


@dataclass
class Batch:
    """The cases of one process, by name, and the storages of their inputs."""

    entries: dict[str, dict[str, Any]]
    storages: dict[str, torch.Tensor]
    device: str
    rank: int = 0
    num_ranks: int = 1

    def case(self, name: str, times: float = 1) -> Case:
        """A case on copies of its storages; `times` multiplies the floating values."""
        made = case_of(self.entries[name], {n: s.clone() for n, s in self.of(name).items()}, self.device)
        if times != 1:
            for tensor in made.tensors.values():
                if tensor.is_floating_point():
                    tensor.untyped_storage().copy_((tensor.new_empty(0).set_(tensor.untyped_storage()) * times).untyped_storage())
        made.batch = self
        return made

    def size_of(self, name: str) -> int:
        """The elements of its inputs."""
        return sum(storage.numel() for storage in self.of(name).values())

    def of(self, name: str) -> dict[str, torch.Tensor]:
        return {view["storage"]: self.storages[view["storage"]] for view in self.entries[name]["inputs"].values()}


def case_of(entry: dict[str, Any], storages: dict[str, torch.Tensor], device: str) -> Case:
    """One case of a plan on its device, views rebuilt on their storages."""
    views = entry["inputs"]
    flat = {name: storages[v["storage"]].to(device) for name, v in views.items()}
    tensors = {name: torch.as_strided(flat[name], v["sizes"], v["strides"], v["offset"]) for name, v in views.items()}
    guarded = {name: (flat[name], v["guard"]) for name, v in views.items() if "guard" in v}
    return Case(entry["name"], entry["axes"], tensors, device, guarded=guarded)


def works(device: str) -> bool:
    """Whether the device's context still answers; an asynchronous CUDA error ends it for the whole process."""
    try:
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True


def structured(error: BaseException) -> dict[str, Any]:
    """Type, CUDA error code and frames of an exception; files relative to the import path they came from."""
    roots = sorted((str(Path(p).resolve()) + os.sep for p in sys.path if p), key=len, reverse=True)

    def relative(file: str) -> str:
        return next((file[len(root) :] for root in roots if file.startswith(root)), Path(file).name)

    # A C++ frame that a binding puts into the traceback carries a whole signature.
    frames = [
        {"file": relative(f.filename), "line": f.lineno or 0, "function": f.name.partition("(")[0] or f.name}
        for f in traceback.extract_tb(error.__traceback__)
    ]
    code = getattr(error, "error_code", None)
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "cuda_code": code if isinstance(code, int) and code >= 0 else None, "frames": frames[-8:]}


def run_case(subject: Any, case: Case) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The report on one case and its outputs; whatever the subject raises becomes part of the report."""
    from scenarios import in_scenario  # here: as in main

    is_cuda = case.device.startswith("cuda")
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(case.device)
        held = torch.cuda.memory_allocated(case.device)
    started = time.perf_counter()
    try:
        outputs = in_scenario(subject.run, case)
        if is_cuda:
            torch.cuda.synchronize(case.device)
    except Unsupported as e:
        return {"status": "unsupported", "reason": str(e) or "no reason given"}, {}
    except Exception as e:
        text = (str(e).splitlines() or [""])[0][:160]
        return {"status": "raised", "reason": text, "exception": structured(e)}, {}
    report: dict[str, Any] = {"status": "ok", "wall_s": time.perf_counter() - started}
    if case.numbers:
        report["numbers"] = case.numbers
    if is_cuda:
        report["peak_bytes"] = torch.cuda.max_memory_allocated(case.device) - held
    outputs = outputs | {f"guard/{name}": bands for name, bands in case.bands().items()}
    return report, {f"{case.name}/{name}": tensor for name, tensor in outputs.items()}


def run_at_ranks(subject: Any, name: str, batch: Batch, num_ranks: int, parts: tuple[Any, ...]) -> tuple[dict[str, Any], Any] | None:
    """Report and outputs of a case at several ranks; None if it has no answer. The parts of the watch learn what ran in each rank."""
    from rank_processes import NoAnswer, agreed, together  # here: as in main

    def device_of(rank: int) -> str:
        return f"cuda:{rank}" if batch.device.startswith("cuda") else batch.device

    def work(rank: int) -> tuple[dict[str, Any], Any, list[Any]]:
        batch.rank, batch.num_ranks, batch.device = rank, num_ranks, device_of(rank)
        prepare(batch.device, is_watched=False)
        report, outputs = run_case(subject, batch.case(name))
        return report, {key: tensor.detach().cpu() for key, tensor in outputs.items()}, [part.state() for part in parts]

    if batch.device.startswith("cuda") and torch.cuda.device_count() < num_ranks:
        return {"status": "unsupported", "reason": f"it needs {num_ranks} GPUs, and {torch.cuda.device_count()} can be used"}, {}
    try:
        reports, outputs, states = zip(*together(work, num_ranks, device_of), strict=True)
    except NoAnswer as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return None
    for state in states:
        for part, own in zip(parts, state, strict=True):
            part.add(own)
    try:
        return reports[0], agreed(list(outputs))
    except ValueError as error:
        return {"status": "raised", "reason": str(error)[:160], "exception": structured(error)}, {}


def version_of(module: str) -> str:
    """An installed package's version, from its metadata or its `__version__`; "unknown" where it has neither."""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(module), "__version__", "unknown"))


def versions() -> dict[str, str]:
    """The versions and the device that the run used."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda or "none"}
    for module in ("triton", "tilelang", "numpy"):
        if importlib.util.find_spec(module):
            found[module] = version_of(module)
    return found


def load_subject(path: Path) -> Any:
    """The pack's subject.py; `subject_runtime` and `stand_in` can be imported from it."""
    sys.modules["subject_runtime"] = sys.modules[__name__]
    sys.path.insert(1, str(path.parent))
    if os.environ.get("PATCHBENCH_MITIGATE"):
        importlib.import_module("patchbench_mitigations.auto")
    spec = importlib.util.spec_from_file_location("subject", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare(device: str, is_watched: bool) -> None:
    """Makes the device the current one."""
    if not device.startswith("cuda"):
        # A release that builds an extension when imported has torch ask the GPU what to build it for, which raises without one.
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
        return
    torch.cuda.set_device(device)  # Triton launches on the current device, whatever its tensors are on
    if is_watched:
        torch.autograd.set_multithreading_enabled(False)  # a backward of another thread would not be seen


def answers(
    subject: Any, batch: Batch, watch: Any, parts: tuple[Any, ...], make_ready: Callable[[], None] | None
) -> Iterator[tuple[str, dict[str, Any], dict[str, torch.Tensor]]]:
    """Name, report and outputs of each case that has an answer. Those at ranks and those that fork come first: a process that forks has
    computed nothing before; `make_ready` is called behind the ranks."""
    from triton_interpreter import keep_types  # here: as in main

    def ranks_of(name: str) -> int:
        return int(batch.entries[name]["axes"].get("ranks", getattr(subject, "RANKS", 1)))

    lines, _ = parts
    for name in sorted(batch.entries, key=lambda name: (ranks_of(name) == 1, batch.entries[name]["axes"].get("scenario") != "forked")):
        keep_types()  # a subject may import Triton in its first case
        lines.case = name
        watch.next_case()
        if ranks_of(name) > 1:
            answer = run_at_ranks(subject, name, batch, ranks_of(name), parts)
        else:
            if make_ready is not None:
                make_ready()
                make_ready = None
            case = case_of(batch.entries[name], batch.storages, batch.device)
            case.batch = batch
            answer = run_case(subject, case)
        if answer is None:
            continue
        report, outputs = answer
        if ran := lines.ran(name):
            report["lines"] = ran
        yield name, report, outputs
        if batch.device != "cpu" and ranks_of(name) == 1 and report["status"] == "raised" and not works(batch.device):
            return


def main(subject_file: Path, work: Path) -> int:
    """Runs every case and writes both result files; cases after one that broke the CUDA context are left unanswered."""
    from arguments import Arguments  # here: a program that loads this file by its path cannot find them
    from changed_lines import ChangedLines
    from watch import Watch

    plan = json.loads((work / "cases.json").read_text())
    device, cases = plan["device"], plan["cases"]
    lines = ChangedLines(plan.get("changed", {}), has_interpreter=device == "cpu")
    arguments = Arguments(plan.get("functions", {}))
    watch = Watch(lines, arguments)
    is_watched = "changed" in plan or "functions" in plan
    # Ranks on a GPU are forked from a process that has not begun to use one.
    is_ready = device == "cpu" or not any("ranks" in entry["axes"] for entry in cases)
    if is_ready:
        prepare(device, is_watched)
    storages = read_safetensors(work / "inputs.safetensors")
    reports: dict[str, Any] = {}
    subject, package = None, "unknown"
    watch.start()
    try:
        subject = load_subject(subject_file)
        package = subject.PACKAGE
        gc.freeze()  # a package that collects garbage itself, as deepspeed does, would walk through all that was imported each time
    except Exception as e:
        text = (str(e).splitlines() or [""])[0][:160]
        raised = {"status": "raised", "reason": text, "exception": structured(e)}
        reports = {entry["name"]: raised for entry in cases}
        cases = []
    batch = Batch({entry["name"]: entry for entry in cases}, storages, device)
    outputs: dict[str, torch.Tensor] = {}
    for name, report, made in answers(subject, batch, watch, (lines, arguments), None if is_ready else lambda: prepare(device, is_watched)):
        reports[name] = report
        outputs.update((key, tensor.detach().cpu()) for key, tensor in made.items())
    write_safetensors(work / "outputs.safetensors", outputs)
    answer = {
        "package": {"name": package, "version": version_of(package)},
        "versions": versions(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "cases": reports,
    }
    watch.stop()
    if "changed" in plan:
        answer["lines"] = lines.report()
    if "functions" in plan:
        answer["arguments"] = arguments.report()
    partial = work / "subject.partial"
    partial.write_text(json.dumps(answer, sort_keys=True))
    os.replace(partial, work / "subject.json")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
