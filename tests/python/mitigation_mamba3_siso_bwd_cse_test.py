"""The hook of pack mamba3_siso_bwd_cse: on a stand-in upstream of our own, and on the release's own functions in Triton's interpreter."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "mitigations"), str(ROOT / "env")]

import fetch  # noqa: E402
from evidence import install_stand_in, speaks_for  # noqa: E402
from patchbench_mitigations import mamba3_siso_bwd_cse as fix  # noqa: E402
from patchbench_mitigations import registry  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

# Rows of states as the release makes them, or wide enough; the kernel is given and does nothing.
FORWARD = """
import torch

class Compiled:
    def __init__(self, fn):
        self.fn = fn
    def __getitem__(self, grid):
        return lambda *_, **__: None

@Compiled
def mamba3_siso_fwd_kernel(Q, SSM_States, headdim_qk, HEADDIM_QK, chunk_offset=0, stride_ssm_states_qkdim=1):
    return {place}

def mamba3_siso_fwd(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, Initial_States=None, chunk_size=64,
                    store_states_adt_outv=False, return_final_states=False, cu_seqlens=None):
    width, block = Q.shape[3], 1 << (Q.shape[3] - 1).bit_length()
    num_chunks = cu_seqlens.shape[0] - 1 + Q.shape[1] // chunk_size
    states = torch.zeros(1, V.shape[2], V.shape[3], num_chunks * {room})
    mamba3_siso_fwd_kernel[1](Q, states, width, HEADDIM_QK=block)
"""
OP = """
import torch
from mamba_ssm.ops.triton.mamba3.mamba3_siso_fwd import mamba3_siso_fwd
CALLS = []

class _Mamba3Function:
    @staticmethod
    def apply(*arguments):
        CALLS.append(arguments)
        q, v, k_state = arguments[0], arguments[2], arguments[13]
        states = None if k_state is None else (arguments[11], arguments[12] + 1, k_state + 1, arguments[14])
        return (v * q.sum(), *states) if arguments[-1] and states else v * q.sum()

def mamba3_siso_combined(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, Input_States=None, chunk_size=64,
                         return_final_states=False, cu_seqlens=None{more}):
    assert Q.shape[3] % 2 == 0 and Angles.shape[-1] <= Q.shape[3] // 2, "the release's own error"
    states = Input_States or (None,) * 4
    return _Mamba3Function.apply(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D, Z, *states, cu_seqlens, chunk_size, return_final_states)
"""
LAYER = f"from {fix.TARGET} import mamba3_siso_combined\n"
KINDS = {
    "faulty": {},
    "right": {"room": "block"},
    "other_places": {"place": "chunk_offset * headdim_qk * stride_ssm_states_qkdim"},
    "other_arguments": {"more": ", extra=None"},
    "broken": {"room": "nothing"},
}


def forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A defective stand-in for the measured release, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("faulty", "2.3.2.post1"))
    words = {"place": fix.PLACED, "room": "width", "more": ""} | KINDS[kind]
    files = {"mamba3_siso_fwd": FORWARD, "mamba3_siso_combined": OP}
    for name, value in words.items():
        files = {file: text.replace("{" + name + "}", value) for file, text in files.items()}
    folder = fix.PARTS.replace(".", "/")
    modules = {f"{folder}{file}.py": text for file, text in files.items()} | {"mamba_ssm/modules/mamba3.py": LAYER}
    install_stand_in(tmp_path, "mamba-ssm", version, modules)
    speaks_for(monkeypatch, "2.3.2.post1")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    forget()
    importlib.invalidate_caches()
    finders = list(sys.meta_path)
    yield tmp_path
    fix.disable()
    sys.meta_path[:] = finders
    forget()


def home() -> ModuleType:
    return importlib.import_module(fix.TARGET)


def layer() -> ModuleType:
    return importlib.import_module("mamba_ssm.modules.mamba3")


BOUNDS = torch.tensor([0, 3, 8], dtype=torch.int32)


def arguments(width: int = 6, num_angles: int = 2, wants: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(1, 8, 1, width)] * 2 + [(1, 8, 2, 4)] + [(1, 2, 8)] * 3 + [(2, width)] * 2 + [(1, 8, 2, num_angles)]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    made[6].requires_grad_(wants)
    return made


def states(width: int) -> tuple[torch.Tensor, ...]:
    return torch.ones(2, 2, 2), torch.ones(2, 2, 4, width), torch.ones(2, 2, width), torch.ones(2, 2, 4)


def given_to_release() -> tuple[object, ...]:
    return home().CALLS[-1]


def test_packed_states_get_room(upstream: Path) -> None:
    fix.enable()
    tensors = arguments()
    _, angle, ssm, k_state, v_state = layer().mamba3_siso_combined(
        *tensors, Input_States=states(6), return_final_states=True, cu_seqlens=BOUNDS
    )
    given = given_to_release()
    for place in (0, 1, 6, 7):
        assert torch.equal(given[place][..., :6], tensors[place]) and given[place].shape[-1] == 8
        assert not given[place][..., 6:].any()
    assert [one.shape[-1] for one in given[11:15]] == [2, 8, 8, 4] and not given[12][..., 6:].any()
    assert all(given[place] is tensors[place] for place in (2, 3, 4, 5, 8))
    # Cut again, and contiguous as the release's own.
    assert ssm.shape == (2, 2, 4, 6) and k_state.shape == (2, 2, 6) and ssm.is_contiguous() and k_state.is_contiguous()
    assert torch.equal(ssm, states(6)[1] + 1) and angle.shape == (2, 2, 2) and torch.equal(v_state, states(6)[3])
    assert fix.status()["counts"] == {"padded": 1}


@pytest.mark.parametrize("width", [6, 48, 96, 130])
def test_the_width_is_the_next_power_of_two(upstream: Path, width: int) -> None:
    fix.enable()
    layer().mamba3_siso_combined(*arguments(width), cu_seqlens=BOUNDS)
    assert given_to_release()[0].shape[-1] == 1 << width.bit_length()


LEFT = {
    "not_packed": (arguments(), None),
    "power_of_two": (arguments(8), BOUNDS),
    "nothing_wants_a_gradient": (arguments(wants=False), BOUNDS),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_right_goes_to_the_original_as_it_came(upstream: Path, name: str) -> None:
    fix.enable()
    tensors, bounds = LEFT[name]
    layer().mamba3_siso_combined(*tensors, cu_seqlens=bounds)
    assert all(got is sent for got, sent in zip(given_to_release(), tensors, strict=False))
    assert fix.status()["counts"] == {"padded": 0}


@pytest.mark.parametrize("tensors", [arguments(7), arguments(6, num_angles=4)], ids=["odd", "angles_too_wide"])
def test_the_releases_own_errors_stay(upstream: Path, tensors: list[torch.Tensor]) -> None:
    """Zeros would take both within what the release accepts."""
    fix.enable()
    with pytest.raises(AssertionError, match="the release's own error"):
        layer().mamba3_siso_combined(*tensors, cu_seqlens=BOUNDS)


def test_without_gradients_an_argument_that_wants_one_is_enough(upstream: Path) -> None:
    """The release stores states then, too."""
    fix.enable()
    with torch.no_grad():
        layer().mamba3_siso_combined(*arguments(), cu_seqlens=BOUNDS)
    with torch.inference_mode():
        layer().mamba3_siso_combined(*arguments(wants=False), None, torch.ones(2), states(6), cu_seqlens=BOUNDS)
    assert fix.status()["counts"] == {"padded": 1}


def test_a_layer_imported_after_the_hook_has_it_and_all_is_put_back(upstream: Path) -> None:
    registry.when_imported(fix.TARGET, fix.enable)
    assert layer().mamba3_siso_combined is home().mamba3_siso_combined and fix.status()["on"]
    replaced = home().mamba3_siso_combined
    original = replaced.__wrapped__
    home().mamba3_siso_combined = lambda *_: None
    with pytest.raises(Refused, match="mamba3_siso_combined was changed since"):
        fix.disable()
    home().mamba3_siso_combined = replaced
    fix.disable()
    fix.disable()
    assert layer().mamba3_siso_combined is home().mamba3_siso_combined is original
    assert fix.status() == {"slug": fix.SLUG, "on": False}


def test_the_probe_and_the_switch_change_no_other_name(upstream: Path) -> None:
    modules = [home(), layer(), importlib.import_module(fix.FORWARD)]
    before = [dict(vars(module)) for module in modules]
    assert fix.probe().state == "needed" and "need 22 columns of states in a row, which has 18" in fix.probe().reason
    fix.enable("pad")
    changed = {name for module, names in zip(modules, before, strict=True) for name in names if vars(module)[name] is not names[name]}
    assert changed == {"mamba3_siso_combined"}
    fix.disable()
    assert all(vars(module) == names for module, names in zip(modules, before, strict=True)) and home().CALLS == []


@pytest.mark.parametrize("upstream", [("right", "2.3.2.post1")], indirect=True)
def test_a_release_with_room_is_left_alone_even_if_forced(upstream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    assert fix.probe().state == "right" and not fix.enable()["on"]


REFUSED = [
    (("other_places", "2.3.2.post1"), "places the states of packed sequences in another way than was measured"),
    (("broken", "2.3.2.post1"), "the host functions raised NameError"),
    (("other_arguments", "2.3.2.post1"), "takes other arguments than were measured"),
    (("faulty", "2.3.1"), "not verified on mamba-ssm 2.3.1; PATCHBENCH_FORCE="),
]


@pytest.mark.parametrize(("upstream", "why"), REFUSED, indirect=["upstream"])
def test_a_release_that_is_not_as_measured_is_refused(upstream: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=why):
        fix.enable()
    assert not fix.status()["on"]
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    if "FORCE" in why:  # the version alone
        assert fix.enable()["on"]
    else:
        with pytest.raises(Refused, match=why):
            fix.enable()


def test_the_kill_switch_and_the_modes(upstream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fix.enable()["mode"] == "pad"
    with pytest.raises(ValueError, match="no mode 'refuse'"):
        fix.enable("refuse")
    fix.disable()
    monkeypatch.setenv("PATCHBENCH_MITIGATE", "off")
    assert not fix.enable()["on"]


# ---- the release's own functions ----

# The op on packed sequences with everything that it takes, and the same sequences one by one, which store states where they have room.
MEASURED = """
import json, os
os.environ["TRITON_INTERPRET"] = "1"
import stand_in, torch
from triton_interpreter import keep_types
stand_in.install()
release = stand_in.op()
keep_types()
from patchbench_mitigations import mamba3_siso_bwd_cse as fix
ALONG = {"Q": 1, "K": 1, "V": 1, "Angles": 1, "Z": 1, "ADT": 2, "DT": 2, "Trap": 2}

def problem(width, seqlen):
    random = lambda *sizes: torch.randn(sizes, generator=generator)
    generator = torch.Generator().manual_seed(3)
    dt = torch.rand(1, 4, seqlen, generator=generator) + 0.05
    made = {"Q": random(1, seqlen, 2, width), "K": random(1, seqlen, 2, width), "V": random(1, seqlen, 4, 16), "ADT": -dt / 2, "DT": dt,
            "Trap": random(1, 4, seqlen), "Q_bias": random(4, width), "K_bias": random(4, width),
            "Angles": random(1, seqlen, 4, width // 8 * 2), "D": random(4), "Z": random(1, seqlen, 4, 16)}
    return {name: tensor.requires_grad_() for name, tensor in made.items()}, random(1, seqlen, 4, 16)

def packed(width, lengths, chunk=32):
    leaves, grad_out = problem(width, sum(lengths))
    bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    with stand_in.interpreted() as guarded:
        out = release.mamba3_siso_combined(**leaves, chunk_size=chunk, cu_seqlens=bounds)
        grads = torch.autograd.grad(out, list(leaves.values()), grad_out)
    return out, dict(zip(leaves, grads)), guarded.past_end()

def single(width, lengths, chunk=32):
    leaves, grad_out = problem(width, sum(lengths))
    with stand_in.interpreted():
        parts = {name: leaf.split(lengths, ALONG[name]) if name in ALONG else [leaf] * len(lengths) for name, leaf in leaves.items()}
        rows = [{name: parts[name][i] for name in leaves} for i in range(len(lengths)) if lengths[i]]
        out = torch.cat([release.mamba3_siso_combined(**row, chunk_size=chunk) for row in rows], 1)
        grads = torch.autograd.grad(out, list(leaves.values()), grad_out)
    return out, dict(zip(leaves, grads)), 0

def evaluated(width, lengths):
    leaves, _ = problem(width, sum(lengths))
    leaves = {name: tensor.detach().requires_grad_(name == "D") for name, tensor in leaves.items()}
    bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    with stand_in.interpreted() as guarded, torch.no_grad():
        release.mamba3_siso_combined(**leaves, chunk_size=32, cu_seqlens=bounds)
    return guarded.past_end()

def off(found, wanted):
    return {name: ((found[1][name] - one).abs().max() / one.abs().max()).item() for name, one in wanted[1].items()}

CASES = {"48": (48, [33, 1, 40]), "96": (96, [17, 1, 20], 16), "short": (48, [2, 1, 3], 16), "empty_last": (48, [33, 32, 0]),
         "empty_inside": (40, [33, 0, 40]), "one": (48, [20]), "room": (24, [9, 1, 5, 4], 16)}
told, single_ones = {}, {name: single(*case) for name, case in CASES.items()}
for is_on in (False, True):
    if is_on:
        fix.enable()
    for name, case in CASES.items():
        found, wanted = packed(*case), single_ones[name]
        told[f"{name} {is_on}"] = {"off": off(found, wanted), "past": found[2], "out": torch.equal(found[0], wanted[0])}
        told[f"{name} {is_on}"]["bits"] = [torch.equal(found[1][k], wanted[1][k]) for k in ALONG]
        told[f"{name} {is_on}"]["gradients"] = [grad.tolist() for grad in found[1].values()]
    told[f"evaluated {is_on}"] = evaluated(48, [33, 1, 40])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What `MEASURED` says, over the release's archive, without and with the mitigation."""
    folder = tmp_path_factory.mktemp("release")
    one = json.loads((ROOT / "env/pins.json").read_text())["upstreams"]["mamba-ssm"]["releases"][-1]
    fetch.unzip(fetch.fetch_file("mamba-ssm", one["file"], one["sha256"]), folder)
    (source,) = folder.glob("mamba_ssm-*")
    repro = ROOT / "repro"
    path = [source, ROOT / "mitigations", repro / "harness", repro / "mamba3_siso_bwd_cse", *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1", "PATCHBENCH_FORCE": fix.SLUG}
    found = subprocess.run([sys.executable, "-c", MEASURED], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["48", "96", "short"])
def test_the_release_writes_past_its_states(measured: dict[str, dict], name: str) -> None:
    """Of sequences of one chunk that begin without a state the states are zero: memory is overwritten, and no gradient is wrong."""
    seen = measured[f"{name} False"]
    assert seen["past"] > 0 and seen["out"]
    wrong = {gradient for gradient, error in seen["off"].items() if error > 1e-3}
    assert wrong == (set() if name == "short" else {"Q", "ADT", "DT", "Q_bias", "Angles"})


def test_the_release_writes_past_its_states_without_gradients_too(measured: dict[str, dict]) -> None:
    """The layer's D wants a gradient under torch.no_grad, too."""
    assert measured["evaluated False"] > 0 and measured["evaluated True"] == 0


@pytest.mark.parametrize("name", ["48", "96", "short", "empty_last", "empty_inside", "one", "room"])
def test_packed_sequences_have_the_bits_of_single_ones(measured: dict[str, dict], name: str) -> None:
    seen = measured[f"{name} True"]
    assert seen["past"] == 0 and seen["out"] and all(seen["bits"])
    assert max(seen["off"].values()) < 2e-6  # the biases are summed over sequences, in another order
    if not measured[f"{name} False"]["past"]:
        assert seen["gradients"] == measured[f"{name} False"]["gradients"]
