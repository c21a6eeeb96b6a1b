"""What all mitigations share, on a toy release of one function that triples where it should double."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import multiprocessing
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from patchbench_mitigations import fingerprint, ranks, registry  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402
from patchbench_mitigations.fingerprint import digest_of, own_function  # noqa: E402
from patchbench_mitigations.switch import Arguments, Finding, Hook, Mitigation, Placement  # noqa: E402

TOY = """
__version__ = "1.0"

def scaled(x):
    return {factor} * x
"""


class Toy(Mitigation):
    """Takes a third off."""

    slug, package, modes, op, counted, keys = "toy", "toy", ("auto", "plain"), "toy::op", ("calls",), ("toy:scaled",)

    def op_note(self, mode: str) -> str:
        return "mode plain" if mode == "plain" else ""

    def release(self) -> tuple[ModuleType, str]:
        module = importlib.import_module("toy")
        if not own_function(module.scaled, module):
            raise self.refusal("scaled is wrapped already; undo that first")
        return module, module.__version__

    def look(self, release: ModuleType, version: str) -> Finding:
        return Finding("right" if release.scaled(1.0) == 2 else "needed", version, f"1 gives {release.scaled(1.0)}")

    def placements(self, release: ModuleType, hook: Hook) -> list[Placement]:
        original = release.scaled

        def scaled(x: Any) -> Any:
            hook.serve(calls=1)
            return original(x) / 3 * 2

        scaled.__wrapped__, scaled.__module__, scaled.__qualname__ = original, "toy", "scaled"
        return [Placement(release, "scaled", original, scaled, "toy.scaled", "toy")]

    def left(self, release: ModuleType, hook: Hook) -> str:
        return "" if release.scaled(1.0) == 2 else f"1 still gives {release.scaled(1.0)}"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The toy release; the evidence speaks for the function as it is now."""
    (tmp_path / "toy.py").write_text(TOY.format(factor=3))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE", "PATCHBENCH_MITIGATE_STATUS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    importlib.invalidate_caches()
    module = importlib.import_module("toy")
    release = {"mitigated": "00", "functions": {"toy:scaled": digest_of(module.scaled)}}
    monkeypatch.setattr(fingerprint, "data_of", lambda slug: {"package": "toy", "releases": {"1.0": release}})
    monkeypatch.setattr(registry, "_refused", {})
    yield module
    del sys.modules["toy"]


@pytest.fixture
def fix() -> Toy:
    return Toy()


def test_a_version_that_lies_is_refused_and_a_forced_one_taints_every_message(
    toy: ModuleType, fix: Toy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path(toy.__file__).write_text(TOY.format(factor=3).replace("3 * x", "x * 3"))
    importlib.reload(toy)
    with pytest.raises(Refused, match="toy says 1.0, but its scaled is not that release's; PATCHBENCH_FORCE=toy acts"):
        fix.enable()
    assert toy.scaled(1.0) == 3 and registry.status()["refusals"]["toy"]["count"] == 1
    monkeypatch.setenv("PATCHBENCH_FORCE", "other,toy")
    assert "not that release's" in fix.enable()["tainted"]
    toy.scaled(1.0)
    assert len(caplog.records) == 2 and all("[tainted: PATCHBENCH_FORCE;" in r.getMessage() for r in caplog.records)
    assert "[tainted" in str(fix.refusal("something later"))


@pytest.mark.parametrize(("version", "same"), [("1.0", ""), ("1.1", "1.0"), ("unknown", "1.0")])
def test_another_version_of_the_same_code_is_served_and_says_so(
    toy: ModuleType, fix: Toy, caplog: pytest.LogCaptureFixture, version: str, same: str
) -> None:
    toy.__version__ = version
    shown = fix.enable()
    assert (shown["on"], shown["version"], shown["same_code_as"], shown["tainted"]) == (True, version, same, "")
    assert (f"on for toy {version} (same code as 1.0), mode" in caplog.text) == bool(same)


def test_another_version_of_other_code_is_refused(toy: ModuleType, fix: Toy) -> None:
    Path(toy.__file__).write_text(TOY.format(factor=3).replace("3 * x", "x * 3").replace("1.0", "1.1"))
    importlib.reload(toy)
    with pytest.raises(Refused, match="not verified on toy 1.1"):
        fix.enable()
    assert fingerprint.measured_as("toy", "1.1", []) == ("", "not verified on toy 1.1")  # nothing was compared


def test_a_function_that_moved_or_is_wrapped_already_is_refused(toy: ModuleType, fix: Toy, tmp_path: Path) -> None:
    original = toy.scaled
    (tmp_path / "elsewhere.py").write_text("def scaled(x):\n    return 3 * x\n")
    toy.scaled = importlib.import_module("elsewhere").scaled
    with pytest.raises(Refused, match="wrapped already"):
        fix.enable()
    for wrapped in (lambda x: original(x), functools.wraps(original)(lambda x: original(x))):
        toy.scaled = wrapped
        with pytest.raises(Refused, match="wrapped already"):
            fix.enable()
    del sys.modules["elsewhere"]
    assert not fix.status()["on"]


def test_the_digest_is_of_the_source_and_not_of_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class A:\n    @staticmethod\n    def f(x):\n        return x  \n        # told\n"
    (tmp_path / "nested.py").write_text("\n\n" + text)
    monkeypatch.syspath_prepend(str(tmp_path))
    live = fingerprint.function_of("nested:A.f")
    assert digest_of(live) == fingerprint.digest_of_source("@staticmethod\ndef f(x):\n    return x")
    assert digest_of(live) != fingerprint.digest_of_source("def f(x):\n    return x")
    assert digest_of(exec) == "no source" and fingerprint.function_of("nested:A.g") is None


def test_a_right_release_can_be_retired(toy: ModuleType, fix: Toy, caplog: pytest.LogCaptureFixture) -> None:
    toy.scaled.__code__ = (lambda x: 2 * x).__code__
    before = toy.scaled
    assert not fix.enable()["on"] and toy.scaled is before
    assert "this mitigation can be retired" in caplog.records[-1].getMessage()


def test_double_enabling_and_disabling_restores_the_very_object(toy: ModuleType, fix: Toy) -> None:
    before = dict(vars(toy))
    for _ in range(2):
        fix.enable()
    assert toy.scaled(1.0) == 2 and toy.scaled.__wrapped__ is before["scaled"]
    for _ in range(2):
        fix.disable()
    assert all(vars(toy)[name] is value for name, value in before.items())


def test_names_bound_before_the_hook_follow_within_the_package(toy: ModuleType, fix: Toy) -> None:
    caller = ModuleType("toy.caller")
    caller.scaled = original = toy.scaled
    sys.modules["toy.caller"] = caller
    try:
        fix.enable()
        assert caller.scaled(1.0) == 2
        fix.disable()
        assert caller.scaled is original
    finally:
        del sys.modules["toy.caller"]


def test_what_the_replaced_function_raises_changes_nothing(toy: ModuleType, fix: Toy) -> None:
    fix.enable()
    for _ in range(2):
        with pytest.raises(TypeError, match="unsupported operand"):
            toy.scaled(object())
    assert toy.scaled(1.0) == 2 and fix.status()["counts"] == {"calls": 3}


def test_a_fix_that_raises_or_does_not_take_is_rolled_back(toy: ModuleType, fix: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    before = toy.scaled
    monkeypatch.setattr(Toy, "left", lambda *_: "1 still gives 3")
    with pytest.raises(Refused, match="the fix did not take on toy 1.0 .1 still gives 3.; it is off again"):
        fix.enable()
    monkeypatch.setattr(Toy, "left", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fix.enable()
    assert toy.scaled is before and not fix.status()["on"]


def test_threads_race_at_first_use_and_one_line_is_said(
    toy: ModuleType, fix: Toy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of the ranks lets all threads come to it, were it not for the lock."""
    compared: list[None] = []

    def compare_asked() -> None:
        compared.append(None)
        threading.Event().wait(0.2)

    monkeypatch.setattr(ranks, "compare_asked", compare_asked)
    fix.enable()
    gate, results = threading.Barrier(8), []

    def call() -> None:
        gate.wait()
        results.extend(toy.scaled(1.0) for _ in range(50))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [2.0] * 400 and fix.status()["counts"] == {"calls": 400}
    assert len(compared) == sum("first use" in r.getMessage() for r in caplog.records) == 1


def test_switching_while_others_call_gives_one_answer_or_the_other(toy: ModuleType, fix: Toy) -> None:
    seen, stop = set(), threading.Event()

    def call() -> None:
        while not stop.is_set():
            seen.add(toy.scaled(1.0))

    thread = threading.Thread(target=call)
    thread.start()
    for _ in range(20):
        fix.enable()
        fix.disable()
    stop.set()
    thread.join()
    assert seen <= {2.0, 3.0} and toy.scaled(1.0) == 3


def report(fix: Toy, pipe: Any) -> None:
    before = fix.status()["counts"]["calls"]
    pipe.send((before, sys.modules["toy"].scaled(1.0), fix.status()["counts"]["calls"], fix.disable()["on"]))


def test_a_fork_after_enabling_counts_for_itself(toy: ModuleType, fix: Toy) -> None:
    fix.enable()
    toy.scaled(1.0)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=report, args=(fix, there))
    child.start()
    assert here.poll(60) and here.recv() == (0, 2.0, 1, False)
    child.join()
    assert fix.status()["counts"] == {"calls": 1} and toy.scaled(1.0) == 2


def test_a_replaced_function_is_copied_and_pickled_by_its_name(toy: ModuleType, fix: Toy) -> None:
    fix.enable()
    assert pickle.loads(pickle.dumps(toy.scaled)) is toy.scaled is copy.deepcopy({"loss": toy.scaled})["loss"]


def test_the_status_files_are_whole_and_name_what_was_counted(
    toy: ModuleType, fix: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("patchbench_mitigations.toy")
    module.status = fix.status
    monkeypatch.setitem(sys.modules, "patchbench_mitigations.toy", module)
    monkeypatch.setattr(registry, "slugs", lambda: ["toy"])
    monkeypatch.setenv("PATCHBENCH_MITIGATE_STATUS", str(tmp_path / "status"))
    monkeypatch.setenv("RANK", "3")
    fix.enable()
    toy.scaled(1.0)
    toy.scaled(1.0)
    registry.write_status()
    files = {file.suffix: file.read_text() for file in (tmp_path / "status").glob("rank3-*")}
    assert json.loads(files[".json"])["mitigations"]["toy"]["counts"] == {"calls": 2}
    assert 'patchbench_mitigation_events_total{slug="toy",event="calls",rank="3"} 2\n' in files[".prom"]
    assert 'patchbench_mitigation_on{slug="toy",mode="auto",version="1.0",rank="3"} 1\n' in files[".prom"]
    assert len(files) == len(list((tmp_path / "status").iterdir()))


def test_arguments_are_bound_as_python_binds_them() -> None:
    import inspect

    def f(a: int, b: int = 2, *, c: int = 3) -> tuple[int, ...]:
        return a, b, c

    arguments = Arguments(inspect.signature(f))
    for args, words in (((1,), {}), ((1, 5), {"c": 7}), ((), {"a": 4})):
        assert arguments.call(f, arguments.of(args, words)) == f(*args, **words)
    for args, words in (((1, 2, 3), {}), ((), {}), ((1,), {"d": 1}), ((1,), {"a": 1})):
        with pytest.raises(TypeError):
            arguments.call(f, arguments.of(args, words))


def test_a_call_costs_microseconds(toy: ModuleType, fix: Toy) -> None:
    """Processor time of the switch's share of a call, the least of five thousands."""
    fix.enable()
    toy.scaled(1.0)
    original, times = toy.scaled.__wrapped__, []
    for _ in range(5):
        marks = [time.process_time()]
        for function in (original, toy.scaled):
            for _ in range(1000):
                function(1.0)
            marks.append(time.process_time())
        times.append((marks[2] - marks[1]) - (marks[1] - marks[0]))
    assert min(times) < 1000 * 20e-6


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_call_is_served_and_does_not_count(toy: ModuleType, fix: Toy, backend: str) -> None:
    fix.enable()
    torch.compiler.reset()
    compiled = torch.compile(lambda x: toy.scaled(x) + 1, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0)) and fix.status()["counts"] == {"calls": 0}
