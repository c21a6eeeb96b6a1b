"""Each rule of env/policy.json against the torch present, and the code rules on small sources of the test's own."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
RULES = {r["name"]: r for r in json.loads((ROOT / "env" / "policy.json").read_text())["rules"]}
SITE = Path(torch.__file__).resolve().parents[1]
OF_TORCH = [r for r in RULES.values() if r["kind"] in ("environment", "torch_config")]


def mentions(file: Path, word: str) -> bool:
    """Whether a file of torch holds a name, in its source or among its strings."""
    return word.encode() in file.read_bytes()


@pytest.mark.parametrize("rule", OF_TORCH, ids=lambda r: r["name"])
def test_the_named_file_of_torch_reads_it(rule: dict) -> None:
    if rule["source"] == "absent":
        return
    assert mentions(SITE / rule["source"], rule["target"].rpartition(".")[2])
    if "variable" in rule:
        assert mentions(SITE / rule["source"], rule["variable"]["name"])


def test_what_is_called_absent_is_nowhere_in_torch() -> None:
    absent = [r["target"] for r in RULES.values() if r["source"] == "absent"]
    assert absent == ["TORCH_DISTRIBUTED_DEFAULT_TIMEOUT"]
    searched = ["grep", "-rlF", "--include=*.py", "--include=*.so", "--include=*.h", "--include=*.hpp", "-e"]
    assert subprocess.run([*searched, absent[0], SITE / "torch"]).returncode == 1
    assert subprocess.run([*searched, "TORCH_NCCL_ENABLE_MONITORING", "-m1", SITE / "torch" / "include"], capture_output=True).stdout


@pytest.mark.parametrize("rule", [r for r in OF_TORCH if r["kind"] == "torch_config"], ids=lambda r: r["name"])
def test_the_config_line_is_there_and_the_older_name_is_its_alias(rule: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = rule["target"].rpartition(".")
    config = importlib.import_module(module)
    assert type(getattr(config, name)) is type(rule["expect"]["equals"])
    if "was" in rule:
        with config.patch(**{name: 77}):
            assert getattr(config, rule["was"].rpartition(".")[2]) == 77


def test_a_variable_sets_the_config_line_it_stands_for(tmp_path: Path) -> None:
    lines = [r for r in OF_TORCH if "variable" in r]
    env = {r["variable"]["name"]: r["variable"]["value"] for r in lines} | {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SITE)}
    words = [sys.executable, ROOT / "env" / "torch_facts.py", *(r["target"] for r in lines), "torch._dynamo.config.none"]
    said = json.loads(subprocess.run(words, env=env | {"TORCHDYNAMO_SUPPRESS_ERRORS": "0"}, capture_output=True, text=True).stdout)
    assert said.pop("torch._dynamo.config.none") == "absent"
    assert said == {r["target"]: r["expect"]["equals"] for r in lines}


def test_autotuning_is_off_where_nothing_is_set_and_a_compile_mode_switches_it_on() -> None:
    """What env/README.md says of the rules max_autotune and max_autotune_gemm."""
    code = "import torch._inductor as i, torch._inductor.config as c\n"
    code += "print(c.max_autotune, c.max_autotune_gemm, i.list_mode_options('max-autotune')['max_autotune'])"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SITE)}
    zero = {RULES[name]["target"]: "0" for name in ("max_autotune", "max_autotune_gemm")}
    for given in ({}, zero):
        assert subprocess.run([sys.executable, "-c", code], env=env | given, capture_output=True, text=True).stdout == "False False True\n"


def test_any_text_switches_suppress_errors_on() -> None:
    code = "import torch._dynamo.config as c; print(c.suppress_errors)"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SITE), "TORCHDYNAMO_SUPPRESS_ERRORS": "0"}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "True\n"


def test_the_locked_triton_is_in_its_range() -> None:
    import triton

    assert RULES["triton_version"]["expect"]["range"] == ">=3.6.0,<3.7" and triton.__version__.startswith("3.6.")


def lint(tmp_path: Path, *sources: str) -> tuple[int, list[tuple[str, int]]]:
    """Exit status, and rule and line of each finding."""
    for i, source in enumerate(sources):
        (tmp_path / f"f{i}.py").write_text(source)
    done = subprocess.run([sys.executable, ROOT / "env" / "lint.py", "--json", tmp_path], capture_output=True, text=True)
    return done.returncode, [(f["rule"], f["line"]) for f in json.loads(done.stdout)["findings"]]


RESET = "import torch\nfrom torch import _dynamo as d\n\ndef f():\n    d.reset()\n"


def test_lint_counts_reset_sites_over_all_files(tmp_path: Path) -> None:
    assert lint(tmp_path, RESET) == (0, [])
    other = "import torch.compiler\ntorch.compiler.reset()\n"
    assert lint(tmp_path, RESET, other) == (1, [("one_reset_site", 5), ("one_reset_site", 2)])
    assert lint(tmp_path, RESET, "text = 'torch._dynamo.reset()'  # torch._dynamo.reset()\nreset()\n") == (0, [])


MODULE = """
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.scale = 0, 1.0
        self.seen = 0
        self.register_buffer("count", torch.zeros(()))

class Layer(Base):
    calls = 0
    def __init__(self):
        super().__init__()
        self.step = 0
    def forward(self, x):
        self.count += 1
        self.note()
        if not torch.compiler.is_compiling():
            self.step += 1
        return x
    def note(self):
        self.calls += 1
        self.step = self.step + 1
    def report(self):
        self.step += 1

class Plain:
    def __init__(self):
        self.step = 0
    def forward(self):
        self.step += 1
"""


def test_lint_finds_counters_that_a_compiler_sees(tmp_path: Path) -> None:
    assert lint(tmp_path, MODULE) == (1, [("counters_are_buffers", 24), ("counters_are_buffers", 25)])
    off = MODULE.replace("    def note", "    @torch.compiler.disable\n    def note")
    assert lint(tmp_path, off) == (0, [])
    allowed = MODULE.replace("calls += 1", "calls += 1  # patchbench: allow counters_are_buffers")
    assert lint(tmp_path, allowed) == (1, [("counters_are_buffers", 25)])


def test_lint_finds_suppressed_errors_and_axes(tmp_path: Path) -> None:
    source = """import os, torch
import torch._dynamo.config as cfg
cfg.suppress_errors = True
cfg.suppress_errors = False
os.environ["TORCHDYNAMO_SUPPRESS_ERRORS"] = "0"
torch.compile(len, dynamic=True)
torch._dynamo.mark_dynamic(x, 0)
torch._dynamo.mark_dynamic(y, [0, 1])
torch._dynamo.mark_dynamic(x, 1)
"""
    rules = [("no_suppress_errors_in_code", n) for n in (3, 5)] + [("one_dynamic_axis", n) for n in (6, 8, 9)]
    assert lint(tmp_path, source) == (1, rules)


def test_lint_names_what_it_could_not_read(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'two'\n")
    done = subprocess.run([sys.executable, ROOT / "env" / "lint.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0 and "old.py was not read" in done.stderr and "1 files not read" in done.stdout
    assert subprocess.run([sys.executable, ROOT / "env" / "lint.py", tmp_path / "none"], capture_output=True).returncode == 2
