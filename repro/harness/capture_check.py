#!/usr/bin/env python3
"""Finds the host synchronisations and host copies on a path that is to be captured into a CUDA graph.

Four detectors. Each names the place in the user's code (file, line, function) and counts equal places:

  reads    runs the code as it is, on any device, and flags the operators that read a tensor on the host or whose result
           size depends on data. Goes on after each. On CPU tensors it cannot see a copy between host and device.
  fake     runs a function on fake CUDA tensors, without a driver: takes the `is_cuda` branches, sees the copies between
           host and device as well, and ends where a value is needed that no fake tensor has. Cannot run autograd's
           engine (call a backward function directly), `pin_memory()`, streams or `.numpy()`; says where it stopped.
  capture  captures for real, once per capture mode. Needs a GPU.
  sync     one eager run under torch's sync debug mode, which refuses a synchronisation. Needs a GPU.

Not seen: raw CUDA calls of third-party kernels, and reads inside a compiled operator, both below torch's dispatcher (only
`capture` meets those); other threads; branches that these inputs do not take. A write of one number through one mask
(`x[mask] = 0.0`) is not flagged: torch turns it into a fill. On a CPU run a rank-0 tensor so written counts as a number.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import runpy
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

try:
    import torch
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    print(f"capture-check: {sys.executable} has no {missing.name}; name the interpreter your code runs on", file=sys.stderr)
    sys.exit(4)
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DETECTORS = ("reads", "fake", "capture", "sync")
LIMITS = "Not seen: raw CUDA calls of third-party kernels, below torch's dispatcher."
READS = {"_local_scalar_dense", "equal", "is_nonzero", "allclose"}
DYNAMIC = {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
           "bincount"}  # fmt: skip
INDEX = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
COPIES = {"_to_copy", "copy_", "copy"}
UNSUPPORTED, INVALIDATED = 900, 901  # cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated
TORCH, STDLIB = (str(Path(p)) + os.sep for p in (Path(torch.__file__).parent, sysconfig.get_paths()["stdlib"]))


class NotRunnable(Exception):
    """This machine cannot run the detector; the text is the reason."""


@dataclass(frozen=True)
class Site:
    """One place in the user's code; kind is host_read, host_copy or dynamic_shape."""

    op: str
    kind: str
    file: str
    line: int
    function: str


@dataclass
class Report:
    """What one detector saw: sites with their counts in order of first appearance, how many lay outside `within`, and why
    the run ended early (None: it reached its end)."""

    sites: list[tuple[Site, int]] = field(default_factory=list)
    outside: int = 0
    stopped: str | None = None


@dataclass(frozen=True)
class Failure:
    """Why a capture failed. kind: not_permitted (CUDA refused a call, code 900), invalidated (only 901 is left), cuda_error
    (another code), host_copy (torch refused a copy of pageable memory, no code) or other."""

    kind: str
    code: int | None
    type: str
    site: Site | None


@dataclass(frozen=True)
class Captured:
    """The outcome of one capture mode."""

    mode: str
    captured: bool
    replays: int
    failure: Failure | None


def relative(file: str) -> str:
    """The file relative to the sys.path entry it came from; its name alone where it came from none."""
    whole = str(Path(file).resolve())
    roots = sorted((str(Path(p).resolve()) + os.sep for p in sys.path if p), key=len, reverse=True)
    return next((whole[len(root) :] for root in roots if whole.startswith(root)), Path(file).name)


def belongs(frame: FrameType, within: str | None) -> bool:
    """Whether a frame is inside `within` (a package or a path), or, without one, the user's: not torch's, not Python's."""
    file = frame.f_code.co_filename
    if file == __file__:
        return False
    if within:
        module, path = frame.f_globals.get("__name__") or "", os.path.abspath(within)
        return f"{module}.".startswith(f"{within}.") or f"{os.path.abspath(file)}{os.sep}".startswith(f"{path}{os.sep}")
    library = file.startswith(STDLIB) and "-packages" not in file
    return not (file.startswith((TORCH, "<frozen")) or library)


def callers(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """The frames from this one outwards."""
    while frame:
        yield frame, frame.f_lineno
        frame = frame.f_back


def site_of(frames: Iterable[tuple[FrameType, int]], op: str, kind: str, within: str | None) -> Site | None:
    """The first frame (innermost comes first) that belongs to the user's code, as a site; None if there is none."""
    for frame, line in frames:
        if belongs(frame, within):
            return Site(op, kind, relative(frame.f_code.co_filename), line, frame.f_code.co_name)
    return None


def raised_at(error: BaseException, op: str, kind: str, within: str | None = None) -> Site | None:
    """Where an exception left the user's code."""
    return site_of(reversed(list(traceback.walk_tb(error.__traceback__))), op, kind, within)


def crosses(source: torch.Tensor, target: torch.Tensor | torch.device, non_blocking: bool) -> bool:
    """Whether a copy goes between host and device and waits: all do but unblocking ones with pinned memory on the host."""
    device = target if isinstance(target, torch.device) else target.device
    kinds = {source.device.type, device.type}
    if "cpu" not in kinds or len(kinds) == 1 or "meta" in kinds:
        return False
    host = source if source.device.type == "cpu" else target
    pinned = host.is_pinned() if isinstance(host, torch.Tensor) else True  # to("cpu", non_blocking=True) makes pinned memory
    return not (non_blocking and pinned)


def index_kind(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """What indexing with tensors does on the host: a mask is counted, an index or a number from the CPU is copied."""
    own = args[0].device
    given = [index for index in args[1] if isinstance(index, torch.Tensor)]
    masks = [index for index in given if index.dtype in (torch.bool, torch.uint8)]
    value = args[2] if "put" in name else None
    if value is not None:
        number = value.device.type == "cpu" and value.numel() == 1 and (own.type != "cpu" or value.dim() == 0)
        accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        if number and len(given) == len(masks) == 1 and masks[0].device == own and not accumulate:
            return None
    if masks:
        return "dynamic_shape"
    return "host_copy" if any(t.device.type == "cpu" != own.type for t in (*given, value) if t is not None) else None


def kind_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """The kind of host synchronisation that an operator is with these arguments; None for none."""
    name = func.overloadpacket.__name__
    if name in COPIES:
        source, target = (args[1], args[0]) if name != "_to_copy" else (args[0], kwargs.get("device") or args[0].device)
        return "host_copy" if crosses(source, target, kwargs.get("non_blocking") or args[2:3] == (True,)) else None
    if name in INDEX:
        return index_kind(name, args, kwargs)
    if name == "where":
        return "host_copy" if len({t.device.type for t in args if isinstance(t, torch.Tensor)}) > 1 else None
    if name in DYNAMIC or torch.Tag.dynamic_output_shape in func.tags:
        return None if kwargs.get("output_size") is not None else "dynamic_shape"
    return "host_read" if name in READS or torch.Tag.data_dependent_output in func.tags else None


class _Methods(TorchFunctionMode):
    """`tolist` and `numpy` of a CPU tensor, which read its memory without an operator."""

    def __init__(self, owner: HostReads) -> None:
        super().__init__()
        self.owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__) and args[0].device.type == "cpu":
            self.owner.note(f"Tensor.{func.__name__}", "host_read")
        return func(*args, **(kwargs or {}))


class HostReads(TorchDispatchMode):
    """Flags and counts host reads while it is entered (`with HostReads() as reads: ...; reads.report()`); changes nothing.

    `only_devices` (such as ("cuda",)) leaves out reads of tensors on any other device; the default takes all, because on a
    CPU run every tensor is on the CPU. `within` keeps the sites inside one package or path and counts the others.
    `seen` holds the device types that came by, `raised` the operator that an exception came from.
    """

    def __init__(self, only_devices: Sequence[str] | None = None, within: str | None = None) -> None:
        super().__init__()
        self.only_devices, self.within = only_devices, within
        self.counts: dict[Site, int] = {}
        self.outside = 0
        self.seen: set[str] = set()
        self.raised: Site | None = None
        self._methods = _Methods(self) if only_devices is None or "cpu" in only_devices else contextlib.nullcontext()

    def __enter__(self) -> HostReads:
        self._methods.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._methods.__exit__(*error)

    def note(self, op: str, kind: str) -> None:
        """Counts one read at the caller's place."""
        site = site_of(callers(sys._getframe(1)), op, kind, self.within)
        if site is None:
            self.outside += 1
        else:
            self.counts[site] = self.counts.get(site, 0) + 1

    def report(self) -> Report:
        """What was seen so far."""
        return Report(list(self.counts.items()), self.outside)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        devices = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        devices |= {torch.device(kwargs["device"]).type} if kwargs.get("device") is not None else set()
        self.seen |= devices
        watched = self.only_devices is None or not devices.isdisjoint(self.only_devices)
        op, kind = str(func.overloadpacket), kind_of(func, args, kwargs) if watched else None
        if kind:
            self.note(op, kind)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            unknown = isinstance(error, DataDependentOutputException | DynamicOutputShapeException)
            if unknown and watched and not kind:
                kind = "host_read" if isinstance(error, DataDependentOutputException) else "dynamic_shape"
                self.note(op, kind)
            self.raised = site_of(callers(sys._getframe(1)), op, kind or "host_read", self.within)
            raise


def attempt(call: Callable[[], Any]) -> str | None:
    """Runs a call; why it did not reach its end, or None."""
    try:
        call()
    except SystemExit as end:
        return None if end.code in (None, 0) else f"SystemExit: {end.code}"
    except Exception as error:
        site = raised_at(error, "", "")
        where = f" at {site.file}:{site.line}" if site else ""
        return f"{type(error).__name__}{where}: {(str(error).splitlines() or [''])[0][:160]}"
    return None


def check_reads(call: Callable[[], Any], within: str | None = None) -> Report:
    """One run under HostReads; an exception is in the report."""
    with HostReads(within=within) as reads:
        stopped = attempt(call)
    report = reads.report()
    report.stopped = stopped
    return report


class FakeCuda(FakeTensorMode):
    """Fakes CUDA as on a machine without one, everywhere: else `torch.tensor(x, device="cuda")` copies for real, unseen."""

    avoid_device_init = True


def check_fake(function: Callable[..., Any], *args: Any, within: str | None = None, **kwargs: Any) -> Report:
    """Runs the function on fake CUDA tensors in place of its CPU tensor arguments (nested ones too; dense ones only).

    While it runs, `torch.cuda` says that a capture is under way on device 0 and `synchronize` is a site. Tensors that are
    no arguments (closures, module parameters) stay on the CPU. Any exception ends the run and is in the report, and so is a
    run in which no CUDA tensor came by, because nothing could have been found.
    """
    mode, made = FakeCuda(allow_non_fake_inputs=True), {}
    reads = HostReads(("cuda",), within)

    def faked(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
            return leaf
        if id(leaf) not in made:
            twin = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cuda:0")
            made[id(leaf)] = twin.requires_grad_(leaf.requires_grad)
        return made[id(leaf)]

    answers = {
        "is_current_stream_capturing": lambda: True,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: reads.note("cuda.synchronize", "host_read"),
    }
    with mode, mock.patch.multiple(torch.cuda, **answers):
        args, kwargs = tree_map(faked, (args, kwargs))
        with reads:
            stopped = attempt(lambda: function(*args, **kwargs))
    report = reads.report()
    report.stopped = stopped
    if not stopped and not report.sites and "cuda" not in reads.seen:
        report.stopped = "no CUDA tensor was seen: give the tensors as arguments"
    return report


def as_if_capturing() -> Any:
    """Code that asks torch whether a capture is under way is told so; without a driver the first question alone raises."""
    return mock.patch.multiple(torch.cuda, is_current_stream_capturing=lambda: True, is_initialized=lambda: True)


def classify(error: BaseException, raised: Site | None = None, within: str | None = None) -> Failure:
    """Why a capture failed, from its exception chain: by types and codes first, by text only among plain RuntimeErrors.

    Leaving a spoilt capture raises 901 and hides the 900 behind it, so the whole chain is walked. `raised` is the operator
    that failed, as HostReads saw it.
    """
    chain: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop()
        if link is not None and link not in chain:
            chain.append(link)
            todo += [link.__context__, link.__cause__]
    codes = [getattr(link, "error_code", None) for link in chain]
    coded = {code: link for code, link in zip(codes, chain, strict=False) if isinstance(code, int) and code > 0}  # the innermost of each
    code = UNSUPPORTED if UNSUPPORTED in coded else next(iter(coded), None)
    if code is not None:
        found = coded[code]
        kind = {UNSUPPORTED: "not_permitted", INVALIDATED: "invalidated"}.get(code, "cuda_error")
    else:
        found = next((link for link in reversed(chain) if type(link) is RuntimeError), error)
        copied = (raised is not None and raised.kind == "host_copy") or "between CPU and CUDA" in str(found)
        kind = "host_copy" if copied and type(found) is RuntimeError else "other"
    site = raised or raised_at(found, "unknown", "host_copy" if kind == "host_copy" else "host_read", within)
    return Failure(kind, code, type(found).__name__, site)


def check_capture(
    function: Callable[[], Any], modes: Sequence[str] = ("global", "thread_local", "relaxed"), device: str = "cuda:0",
    within: str | None = None, played: Callable[[Callable[[], None]], int] = lambda replay: 0,
) -> list[Captured]:  # fmt: skip
    """Captures the function once per mode, after a warm-up on a side stream; NotRunnable without a CUDA device.

    `played` is given each captured graph's replay and returns how often it called it; what it raises spoils that mode.
    """
    if not torch.cuda.is_available():
        raise NotRunnable("no CUDA device")
    outcomes = []
    with torch.cuda.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a failed capture leaves an empty graph, which torch warns of
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(side)
        for mode in modes:
            graph, reads = torch.cuda.CUDAGraph(), HostReads(("cuda",), within)
            captured, replays, failure = False, 0, None
            try:
                with reads, torch.cuda.graph(graph, capture_error_mode=mode):
                    function()
                captured = True
                replays = played(graph.replay)
            except Exception as error:
                failure = classify(error, reads.raised, within)
            outcomes.append(Captured(mode, captured, replays, failure))
    return outcomes


def check_sync_debug(function: Callable[[], Any], within: str | None = None) -> Report:
    """An eager run, after a warm-up, that ends at the first synchronisation; NotRunnable without a CUDA device."""
    if not torch.cuda.is_available():
        raise NotRunnable("no CUDA device")
    function()
    torch.cuda.synchronize()
    before, report = torch.cuda.get_sync_debug_mode(), Report()
    try:
        with HostReads(("cuda",), within) as reads:
            torch.cuda.set_sync_debug_mode("error")
            function()
    except RuntimeError as error:
        site = reads.raised or raised_at(error, "unknown", "host_read", within)
        report = Report([(site, 1)] if site else [], 0 if site else 1, "ended at the first synchronisation")
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return report


def row(count: Any, kind: str, op: str, where: str, function: str) -> str:
    """One line of the table, 80 columns at most; a long place keeps its end."""
    where = where if len(where) <= 25 else ".." + where[-23:]
    return f"{count!s:>5} {kind:<13} {op.removeprefix('aten.')[:18]:<18} {where:<25} {function[:14]}".rstrip()


def table(results: dict[str, Any], not_run: dict[str, str]) -> str:
    """The report for a terminal."""
    lines = []
    for name, result in results.items():
        if isinstance(result, list):
            for one in result:
                why = f"not captured: {one.failure.kind}, code {one.failure.code}" if one.failure else "captured"
                lines.append(f"{name} {one.mode}: {why}, {one.replays} replays")
            result = Report([(one.failure.site, 1) for one in result if one.failure and one.failure.site])
        else:
            lines.append(f"{name}: {len(result.sites)} sites, {sum(count for _, count in result.sites)} times")
        if result.sites:
            lines.append(row("count", "kind", "op", "file:line", "function"))
        lines += [row(count, s.kind, s.op, f"{s.file}:{s.line}", s.function) for s, count in result.sites]
        lines += [f"  {result.outside} more outside --within"] * bool(result.outside)
        lines += [f"  stopped: {result.stopped}"[:80]] * bool(result.stopped)
    lines += [f"{name}: not run: {why}"[:80] for name, why in not_run.items()]
    return "\n".join([*lines, LIMITS])


def document(results: dict[str, Any], not_run: dict[str, str]) -> dict[str, Any]:
    """The report for a program."""
    found = {
        name: [asdict(one) for one in result] if isinstance(result, list)
        else asdict(result) | {"sites": [asdict(site) | {"count": count} for site, count in result.sites]}
        for name, result in results.items()
    }  # fmt: skip
    return {"detectors": found, "not_run": not_run, "limits": LIMITS}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        print(f"capture_check: {message}; see --help", file=sys.stderr)
        sys.exit(2)


def arguments(words: Sequence[str] | None) -> tuple[_Parser, argparse.Namespace]:
    """The parsed command line."""
    parser = _Parser(
        prog="capture_check.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="What the target prints goes to standard error. Exit: 0 nothing found; 1 sites found; 2 usage; 4 no detector "
        "ran to its end.\n\nExamples:\n  capture_check.py train_step.py --steps 1\n  capture_check.py --within megatron "
        "--detector fake probe:step\n",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--detector", default=",".join(DETECTORS), metavar="NAMES", help="of %(default)s; default all")
    parser.add_argument("--within", metavar="NAME", help="only sites in this package or below this path")
    parser.add_argument("target", help="SCRIPT.py, run as __main__ under `reads`; or MODULE:FUNCTION, whose arguments come "
                        "from MODULE.example_inputs() (tuple, list or dict), if it has that; gets all detectors")  # fmt: skip
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser, parser.parse_args(words)


def load(parser: _Parser, target: str) -> tuple[Callable[..., Any], Callable[[], tuple[list[Any], dict[str, Any]]]]:
    """MODULE:FUNCTION and what makes its arguments afresh; ends with one line without such a function."""
    module_name, _, name = target.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        parser.error(f"cannot import {module_name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    function = getattr(module, name, None)
    if not callable(function):
        parser.error(f"{module_name} has no function {name!r}")

    def inputs() -> tuple[list[Any], dict[str, Any]]:
        made = module.example_inputs() if hasattr(module, "example_inputs") else ()
        return ([], made) if isinstance(made, dict) else (list(made) if isinstance(made, tuple | list) else [made], {})

    try:
        args, kwargs = inputs()
        inspect.signature(function).bind(*args, **kwargs)
    except Exception as error:
        parser.error(f"{target} and example_inputs() do not fit: {type(error).__name__}: {error}")
    return function, inputs


def run(names: Sequence[str], target: tuple[Any, Any], within: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Every wanted detector on a function; what each found, and why the others could not run."""
    function, inputs = target
    results: dict[str, Any] = {}
    not_run: dict[str, str] = {}
    for name in names:
        args, kwargs = inputs()
        if name in ("capture", "sync") and torch.cuda.is_available():
            args, kwargs = tree_map(lambda t: t.cuda() if isinstance(t, torch.Tensor) else t, (args, kwargs))
        detector: Any = {"reads": check_reads, "capture": check_capture, "sync": check_sync_debug}.get(name)
        try:
            if name == "fake":
                results[name] = check_fake(function, *args, within=within, **kwargs)
            else:
                results[name] = detector(lambda a=args, k=kwargs: function(*a, **k), within=within)
        except Exception as error:
            why = str(error) if isinstance(error, NotRunnable) else f"{type(error).__name__}: {error}"
            not_run[name] = (why.splitlines() or [""])[0]
    return results, not_run


def main(words: Sequence[str] | None = None) -> int:
    """The command line; see --help."""
    parser, given = arguments(words)
    names = given.detector.split(",")
    if unknown := [name for name in names if name not in DETECTORS]:
        parser.error(f"no detector {unknown[0]!r}: choose of {','.join(DETECTORS)}")
    script = given.target.endswith(".py")
    if script and not Path(given.target).is_file():
        parser.error(f"no script {given.target}")
    if not script and (":" not in given.target or given.args):
        parser.error("give SCRIPT.py [ARGS...] or MODULE:FUNCTION")
    with contextlib.redirect_stdout(sys.stderr):
        if script:
            sys.argv = [given.target, *given.args]
            sys.path.insert(0, str(Path(given.target).resolve().parent))
            call = lambda: runpy.run_path(given.target, run_name="__main__")  # noqa: E731
            results: dict[str, Any] = {"reads": check_reads(call, given.within)} if "reads" in names else {}
            not_run = {name: "a script; give MODULE:FUNCTION" for name in names if name != "reads"}
        else:
            results, not_run = run(names, load(parser, given.target), given.within)
    print(json.dumps(document(results, not_run)) if given.json else table(results, not_run))
    captures = [one for result in results.values() if isinstance(result, list) for one in result]
    reports = [result for result in results.values() if isinstance(result, Report)]
    if any(one.failure for one in captures) or any(report.sites for report in reports):
        return 1
    return 0 if captures or any(report.stopped is None for report in reports) else 4


if __name__ == "__main__":
    sys.exit(main())
