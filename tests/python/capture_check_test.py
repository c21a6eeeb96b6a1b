"""The capture-safety detectors: what each flags, where, and what it leaves alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

FILE = Path(__file__).parents[2] / "repro" / "harness" / "capture_check.py"
SPEC = importlib.util.spec_from_file_location("capture_check", FILE)
check = importlib.util.module_from_spec(SPEC)
sys.modules["capture_check"] = check
SPEC.loader.exec_module(check)

X = torch.arange(12.0).reshape(3, 4)
REPEATS = torch.tensor([1, 2, 3])
HERE = Path(__file__).name

# name: (code, what reads on the CPU flags, what fake flags), the latter two as (op, kind) in order
READ, COPY = ("aten._local_scalar_dense", "host_read"), ("aten._to_copy", "host_copy")
NONZERO, GET = ("aten.nonzero", "dynamic_shape"), ("aten.index", "dynamic_shape")
PUT, REPEAT = ("aten.index_put_", "dynamic_shape"), ("aten.repeat_interleave", "dynamic_shape")
SELECT, UNIQUE = ("aten.masked_select", "dynamic_shape"), ("aten._unique2", "dynamic_shape")
SYNCS: dict[str, tuple[Callable[[torch.Tensor], Any], list, list]] = {
    "item": (lambda x: x.sum().item(), [READ], [READ]),
    "bool of any": (lambda x: bool((x > 1).any()), [READ], [READ]),
    "if": (lambda x: 1 if x[0, 1] > 0 else 2, [READ], [READ]),
    "slice bound": (lambda x: x[: x[0, 1].long()], [READ], [READ]),
    "tolist": (lambda x: x.tolist(), [("Tensor.tolist", "host_read")], [READ]),
    "equal": (lambda x: torch.equal(x, x + 0), [("aten.equal", "host_read")], [("aten.equal", "host_read")]),
    "allclose": (lambda x: torch.allclose(x, x), [("aten.allclose", "host_read")], [("aten.allclose", "host_read")]),
    "nonzero": (lambda x: x.nonzero(), [NONZERO], [NONZERO]),
    "where of one": (lambda x: torch.where(x > 1), [NONZERO], [NONZERO]),
    "mask read": (lambda x: x[x > 1], [GET], [GET]),
    "byte mask read": (lambda x: x[(x > 1).to(torch.uint8)], [GET], [GET]),
    "mask write": (lambda x: x.clone().index_put_((x >= 0,), x.flatten()), [PUT], [PUT]),
    "mask add": (lambda x: x.clone().index_put_((x >= 0,), torch.tensor(1.0), True), [PUT], [PUT]),
    "masked_select": (lambda x: x.masked_select(x > 1), [SELECT], [SELECT]),
    "unique": (lambda x: x.unique(), [UNIQUE], [UNIQUE]),
    "unique rows": (lambda x: x.unique(dim=0), [("aten.unique_dim", "dynamic_shape")],
                    [("aten.unique_dim", "dynamic_shape")]),
    "repeat_interleave": (lambda x: x[0].long().repeat_interleave(x[0].long()), [REPEAT], [REPEAT]),
    "two in a row": (lambda x: torch.full((), 1.0, device=x.device).to("cpu") + x.cpu().sum(), [], [COPY, COPY]),
    "tensor of float": (lambda x: x + torch.tensor(1.0, device=x.device), [], [COPY]),
    "as_tensor of list": (lambda x: torch.as_tensor([1.0, 2.0], device=x.device), [], [COPY]),
    "new_tensor": (lambda x: x.new_tensor([1.0]), [], [COPY]),
    "host tensor to device": (lambda x: torch.zeros(3).to(x.device), [], [COPY]),
    "closure to device": (lambda x: REPEATS.to(x.device), [], [COPY]),
    "cpu": (lambda x: x.cpu(), [], [COPY]),
    "copy_ from host": (lambda x: x.clone().copy_(torch.ones(3, 4)), [], [("aten.copy_", "host_copy")]),
    "list as index": (lambda x: x[[0, 1]], [], [COPY]),
    "host index": (lambda x: x[REPEATS - 1], [], [("aten.index", "host_copy")]),
    "number at indices": (lambda x: x.clone().index_put_((x[0].long() % 3,), torch.tensor(1.0)), [],
                          [("aten.index_put_", "host_copy")]),
    "where with host number": (lambda x: torch.where(x > 1, x, torch.tensor(0.0)), [], [("aten.where", "host_copy")]),
    "device synchronize": (lambda x: x.is_cuda and torch.cuda.synchronize(), [], [("cuda.synchronize", "host_read")]),
}  # fmt: skip
CLEAN: dict[str, Callable[[torch.Tensor], Any]] = {
    "scatter_reduce amax": lambda x: x.scatter_reduce(1, torch.zeros_like(x, dtype=torch.long), x, "amax"),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.0),
    "mask write of a number": lambda x: x.clone().__setitem__(x > 1, 0.0),
    "where of three": lambda x: torch.where(x > 1, x, 0.0),
    "clamp": lambda x: x.clamp(0, 1),
    "full": lambda x: torch.full((3,), 2.0, device=x.device) + x.new_zeros(3),
    "arange": lambda x: torch.arange(3, device=x.device) + x.sum(),
    "repeat_interleave with size": lambda x: x.repeat_interleave(x[:, 1].long(), dim=0, output_size=15),
    "index": lambda x: x[x[0].long() % 3],
    "dtype change": lambda x: x.to(torch.float16),
    "unblocking to host": lambda x: x.to("cpu", non_blocking=True),
    "asks whether capturing": lambda x: x + 1 if not x.is_cuda or torch.cuda.is_current_stream_capturing() else x.sum().item(),
    "current device": lambda x: torch.zeros(3, device=torch.cuda.current_device() if x.is_cuda else "cpu") + x.sum(),
}


def found(report: Any) -> list[tuple[str, str]]:
    """(op, kind) of each site, repeated as often as it was counted."""
    return [(site.op, site.kind) for site, count in report.sites for _ in range(count)]


@pytest.mark.parametrize("name", SYNCS)
def test_what_synchronises_is_flagged_at_its_line(name: str) -> None:
    code, on_cpu, on_fake = SYNCS[name]
    reads = check.check_reads(lambda: code(X))
    fake = check.check_fake(code, X)
    assert reads.stopped is None and found(reads) == on_cpu
    assert found(fake) == on_fake
    for site, _ in reads.sites + fake.sites:
        assert (site.file, site.line, site.function) == (HERE, code.__code__.co_firstlineno, "<lambda>")


@pytest.mark.parametrize("name", CLEAN)
def test_what_does_not_synchronise_is_left_alone(name: str) -> None:
    assert check.check_reads(lambda: CLEAN[name](X)) == check.Report()
    assert check.check_fake(CLEAN[name], X) == check.Report()


def inner(x: torch.Tensor) -> float:
    return x.sum().item()


def outer(x: torch.Tensor) -> float:
    return sum(inner(x) for _ in range(3)) + inner(x)


def test_site_is_the_innermost_frame_and_equal_sites_are_counted() -> None:
    ((site, count),) = check.check_reads(lambda: outer(X)).sites
    assert count == 4 and site == check.Site(*READ, HERE, inner.__code__.co_firstlineno + 1, "inner")


def test_fake_run_ends_where_a_value_is_needed_but_not_at_a_copy() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        y = x * torch.tensor(2.0, device=x.device)
        y = y[y > 0]
        return y.cpu()

    report = check.check_fake(both, X)
    assert found(report) == [COPY, GET] and report.stopped.startswith("DynamicOutputShapeException")


def test_fake_run_without_cuda_tensors_is_not_a_clean_one() -> None:
    assert "no CUDA tensor" in check.check_fake(lambda: torch.ones(3).sum()).stopped
    report = check.check_fake(lambda x: x.sum() + torch.ones(3).sum().item(), X)
    assert report.sites == [] and report.stopped.startswith(f"DataDependentOutputException at {HERE}:")


def test_fake_replaces_nested_arguments_once() -> None:
    seen: list[Any] = []
    view = X.t()[1:].requires_grad_()
    check.check_fake(lambda a, *, b: seen.extend([a[0]["k"], a[1], b]), [{"k": view}, 7], b=(view, 2.5))
    first, number, (second, other) = seen
    assert first is second and (number, other) == (7, 2.5) and first.is_cuda and first.requires_grad
    assert first.shape == view.shape and first.stride() == view.stride() and first.dtype == view.dtype


def test_host_tensors_can_be_ignored() -> None:
    with check.HostReads(only_devices=("cuda",)) as reads:
        X.sum().item(), X.tolist(), X.nonzero()
    assert reads.report() == check.Report() and reads.seen == {"cpu"}


def test_mode_is_off_after_its_block_and_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), check.HostReads() as reads:
        raise ZeroDivisionError
    X.sum().item(), X.tolist()
    assert reads.report() == check.Report()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose `step` reads twice, once through a helper of another package; and a script that calls it."""
    for name in ("mylib", "helper"):
        (tmp_path / name).mkdir()
    (tmp_path / "helper" / "__init__.py").write_text("def read(t):\n    return t.item()\n")
    (tmp_path / "mylib" / "__init__.py").write_text(
        "import torch, helper\ndef example_inputs():\n    return (torch.ones(3),)\n"
        "def step(x):\n    helper.read(x.sum())\n    return x.nonzero()\n"
        "def copies(x):\n    return x * torch.tensor(2.0, device=x.device)\ndef clean(x):\n    return x + 1\n"
        "def many(x, y):\n    pass\ndef breaks(x):\n    raise ValueError('no')\n"
    )
    (tmp_path / "s.py").write_text(
        "import sys, torch, mylib\nprint('noise', sys.argv[1:])\nmylib.step(torch.ones(3))\n"
        "if 'twice' in sys.argv:\n    torch.ones(1).item()\nif 'clean' in sys.argv:\n    1 / 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    for name in ("mylib", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_within_selects_the_frame_and_counts_what_lies_outside(package: Path) -> None:
    import mylib

    def both() -> None:
        mylib.step(X)
        X.sum().item()

    places = lambda report: [(s.file, s.line, s.function) for s, _ in report.sites]  # noqa: E731
    step = [("mylib/__init__.py", 5, "step"), ("mylib/__init__.py", 6, "step")]
    assert places(check.check_reads(both))[:2] == [("helper/__init__.py", 2, "read"), step[1]]
    for within in ("mylib", str(package / "mylib")):
        report = check.check_reads(both, within=within)
        assert places(report) == step and report.outside == 1
    assert check.check_reads(both, within="myli") == check.Report(outside=3)
    assert places(check.check_fake(mylib.step, X, within="mylib")) == step[:1]


class Coded(RuntimeError):
    """Replaces torch.AcceleratorError."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.error_code = code


def chained(inner_error: Exception, outer_error: Exception | None, explicit: bool = False) -> Exception:
    """The exception that a caller catches when leaving the capture raises another one."""
    try:
        try:
            raise inner_error
        except Exception as e:
            if outer_error is None:
                raise
            raise outer_error from (e if explicit else outer_error.__cause__)
    except Exception as e:
        return e


PINNED = "cannot copy between CPU and CUDA tensors during capture unless the CPU tensor is pinned"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (chained(Coded(900), None), ("not_permitted", 900)),
        (chained(Coded(900), Coded(901)), ("not_permitted", 900)),
        (chained(Coded(900), Coded(901), explicit=True), ("not_permitted", 900)),
        (chained(chained(Coded(900), KeyError()), Coded(901)), ("not_permitted", 900)),
        (chained(ValueError(), Coded(901)), ("invalidated", 901)),
        (Coded(710), ("cuda_error", 710)),
        (chained(RuntimeError(PINNED), None), ("host_copy", None)),
        (chained(RuntimeError(PINNED), Coded(901)), ("invalidated", 901)),
        (ValueError(PINNED), ("other", None)),
        (RuntimeError("shapes differ"), ("other", None)),
        (Coded(-1), ("other", None)),
    ],
)
def test_failed_capture_is_classified_by_its_chain(error: Exception, expected: tuple[str, int | None]) -> None:
    failure = check.classify(error)
    assert (failure.kind, failure.code) == expected


def test_failed_capture_names_its_place() -> None:
    site = check.classify(chained(Coded(900), Coded(901))).site
    assert (site.op, site.file, site.function) == ("unknown", HERE, "chained")
    copy = check.Site("aten._to_copy", "host_copy", "a.py", 3, "f")
    failure = check.classify(RuntimeError("anything"), copy)
    assert failure == check.Failure("host_copy", None, "RuntimeError", copy)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_detectors_for_a_gpu_say_that_there_is_none() -> None:
    for detector in (check.check_capture, check.check_sync_debug):
        with pytest.raises(check.NotRunnable, match="no CUDA device"):
            detector(lambda: None)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
CODES = {"not_permitted": 900, "invalidated": 901, "host_copy": None}
# Those synchronise below what torch's debug mode watches.
UNWATCHED = ("unique rows", "device synchronize")


@needs_gpu
def test_on_a_gpu_what_synchronises_is_captured_in_no_mode() -> None:
    x = X.cuda()
    for name, (code, *_) in SYNCS.items():
        outcomes = check.check_capture(lambda code=code: code(x))
        assert [one.mode for one in outcomes if not one.captured] == ["global", "thread_local", "relaxed"], name
        for one in outcomes:
            assert one.failure.code == CODES[one.failure.kind], name
            assert (one.failure.site.file, one.failure.site.line) == (HERE, code.__code__.co_firstlineno), name


@needs_gpu
def test_on_a_gpu_the_rest_is_captured_and_replayed() -> None:
    x = X.cuda()
    for name, code in CLEAN.items():
        outcomes = check.check_capture(lambda code=code: code(x), played=lambda replay: [replay(), replay()] and 2)
        assert [(one.captured, one.replays, one.failure) for one in outcomes] == [(True, 2, None)] * 3, name


@needs_gpu
def test_on_a_gpu_the_debug_mode_ends_at_the_first_synchronisation() -> None:
    x = X.cuda()
    for name, code in {n: c for n, (c, *_) in SYNCS.items()}.items() | CLEAN.items():
        report = check.check_sync_debug(lambda code=code: code(x))
        is_seen = (name in SYNCS and name not in UNWATCHED) or name == "asks whether capturing"
        assert [site.line for site, _ in report.sites] == [code.__code__.co_firstlineno] * is_seen, name
        assert torch.cuda.get_sync_debug_mode() == 0


def command(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str, str]:
    """Exit status, output and messages of the command line, in this process."""
    try:
        code = check.main(words)
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


def test_command_on_a_script_in_a_process(package: Path) -> None:
    run = [sys.executable, str(FILE), "--json", "s.py", "twice", "--json"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout)["detectors"]["reads"]
    assert done.returncode == 1 and "noise ['twice', '--json']" in done.stderr
    places = [(s["file"], s["line"], s["count"]) for s in report["sites"]]
    assert places == [("helper/__init__.py", 2, 1), ("mylib/__init__.py", 6, 1), ("s.py", 5, 1)]
    assert report["stopped"] is None


def test_command_on_a_script_that_fails(package: Path, capsys: pytest.CaptureFixture) -> None:
    code, out, _ = command(capsys, "--within", "nothing", "s.py", "clean")
    assert code == 4 and "ZeroDivisionError at s.py:7: division by zero" in out and "2 more outside" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_command_on_a_function(package: Path, capsys: pytest.CaptureFixture) -> None:
    code, out, _ = command(capsys, "mylib:step")
    lines = out.splitlines()
    assert code == 1 and max(map(len, lines)) <= 80 and lines[-1] == check.LIMITS
    assert "    1 host_read     _local_scalar_dens helper/__init__.py:2      read" in lines
    assert {"capture: not run: no CUDA device", "sync: not run: no CUDA device"} < set(lines)
    detectors = json.loads(command(capsys, "--json", "mylib:copies")[1])["detectors"]
    assert {name: len(one["sites"]) for name, one in detectors.items()} == {"reads": 0, "fake": 1}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["mylib:clean"], 0), (["--detector", "fake", "mylib:copies"], 1), (["--detector", "reads", "mylib:copies"], 0),
        (["mylib:breaks"], 4), (["--detector", "capture", "mylib:breaks"], 4), (["--detector", "fake", "s.py"], 4),
        (["--help"], 0), ([], 2), (["nowhere.py"], 2), (["mylib"], 2), (["mylib:none"], 2), (["nolib:step"], 2),
        (["mylib:many"], 2), (["--detector", "all", "s.py"], 2), (["--wrong"], 2), (["mylib:step", "more"], 2),
    ],
)  # fmt: skip
def test_exit_status(package: Path, capsys: pytest.CaptureFixture, words: list[str], code: int) -> None:
    got, out, messages = command(capsys, *words)
    assert got == code, out + messages
    if code == 2:
        assert len(messages.splitlines()) == 1 and messages.startswith("capture_check: ") and not out
