"""The hook of pack megatron_float16_cast on a stand-in upstream: a wrapper of our own that casts everything, or what is not marked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import speaks_for  # noqa: E402
from patchbench_mitigations import megatron_float16_cast as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

UPSTREAM = """
import torch

KIND = "{kind}"

class Float16Module(torch.nn.Module):
    def __init__(self, config, module):
        super().__init__()
        if KIND == "raising":
            raise ValueError("another signature")
        dtype = torch.float16 if config.fp16 else torch.bfloat16
        if KIND in ("right", "marked"):
            mixers = [m for m in module.modules() if KIND == "right" and type(m).__name__.startswith("Mamba")]
            own = [t for m in mixers for n, t in m._parameters.items() if n != "cast"]
            kept = own + [t for t in [*module.parameters(), *module.buffers()] if getattr(t, "keep_in_fp32", False)]
            stay = {id(t) for t in [*kept, *(t.grad for t in kept)]}
            self.module = module._apply(lambda t: t if id(t) in stay or not t.is_floating_point() else t.to(dtype))
        elif KIND == "idle":
            self.module = module
        else:
            self.module = module.half() if config.fp16 else module.bfloat16()
"""
DTYPES = [torch.bfloat16, torch.float16]


class Upstream:
    """A megatron.core on the path, of one kind and version."""

    def __init__(self, folder: Path, kind: str, version: str):
        package = folder / "megatron" / "core" / "transformer"
        package.mkdir(parents=True)
        for one in (package, package.parent, package.parent.parent):
            (one / "__init__.py").write_text(f'__version__ = "{version}"\n')
        (package / "module.py").write_text(UPSTREAM.replace("{kind}", kind))

    @property
    def wrapper(self) -> Any:
        return importlib.import_module(fix.TARGET).Float16Module

    def wrap(self, module: torch.nn.Module, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
        is_bf16 = dtype == torch.bfloat16
        config = SimpleNamespace(bf16=is_bf16, fp16=not is_bf16, virtual_pipeline_model_parallel_size=None)
        return self.wrapper(config, module).module


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A defective stand-in for a measured release, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("faulty", "0.19.2"))
    speaks_for(monkeypatch, "0.19.2")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name in [n for n in sys.modules if n.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    yield Upstream(tmp_path, kind, version)
    fix.disable()
    for name in [n for n in sys.modules if n.partition(".")[0] == "megatron"]:
        del sys.modules[name]


def mixer(marked: bool = True) -> torch.nn.Module:
    """A linear layer above a module with a marked parameter and a marked buffer, and a count."""
    inner = torch.nn.Module()
    inner.dt_bias = torch.nn.Parameter(torch.tensor([-4.61, -2.3, -6.7]))
    inner.register_buffer("scale", torch.tensor([0.3, 1e-9]))
    inner.register_buffer("count", torch.tensor([1_000_001]))
    inner.dt_bias.keep_in_fp32 = inner.scale.keep_in_fp32 = marked
    return torch.nn.Sequential(inner, torch.nn.Linear(3, 3))


MIXERS = sorted(fix.FP32_OF_MIXERS)


def mixer_of(kind: tuple[str, str], dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A module of a mixer's class, in a model: what the mixer makes in float32, one weight of its own, each with a gradient."""
    module = type(kind[1], (torch.nn.Module,), {"__module__": kind[0]})()
    for i, name in enumerate((*fix.FP32_OF_MIXERS[kind], "conv1d_weight")):
        setattr(module, name, torch.nn.Parameter(torch.linspace(-1.3, 0.7, 5, dtype=dtype) + i / 7))
        getattr(module, name).grad = torch.linspace(0.1, 0.3, 5, dtype=dtype)
    return module


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and its gradient, copied."""
    return {
        **{n: p.detach().clone() for n, p in module.named_parameters()},
        **{f"{n}.grad": p.grad.clone() for n, p in module.named_parameters()},
    }


@pytest.mark.parametrize("kind", MIXERS, ids=lambda kind: kind[1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_mixer_makes_in_float32_keeps_its_bits_and_so_does_its_gradient(
    upstream: Upstream, kind: tuple[str, str], dtype: torch.dtype
) -> None:
    assert fix.probe().state == "mixer_parameters_rounded"
    fix.enable()
    given = mixer_of(kind)
    before, objects = state_of(given), dict(given.named_parameters())
    upstream.wrap(torch.nn.Sequential(torch.nn.Linear(3, 3), given), dtype)
    for name, tensor in state_of(given).items():
        kept = name.removesuffix(".grad") in fix.FP32_OF_MIXERS[kind]
        wanted = before[name] if kept else before[name].to(dtype)
        assert tensor.dtype == wanted.dtype and torch.equal(tensor, wanted), name
    assert all(objects[name] is parameter for name, parameter in given.named_parameters())
    assert fix.status()["counts"] == {"served": 1, "kept": len(fix.FP32_OF_MIXERS[kind])}


@pytest.mark.parametrize("order", [1, -1])
def test_a_parameter_that_two_modules_have_stays_whichever_is_cast_first(upstream: Upstream, order: int) -> None:
    fix.enable()
    given, other = mixer_of(MIXERS[-1]), torch.nn.Module()
    other.weight = given.D
    upstream.wrap(torch.nn.Sequential(*[given, other][::order]))
    assert given.D.dtype == other.weight.dtype == given.D.grad.dtype == torch.float32


def test_a_subclass_is_a_mixer_and_another_class_of_that_name_is_none(upstream: Upstream) -> None:
    fix.enable()
    holder, name = MIXERS[-1]
    base = type(name, (torch.nn.Module,), {"__module__": holder})
    for kind, dtype in ((type("Mine", (base,), {}), torch.float32), (type(name, (torch.nn.Module,), {}), torch.bfloat16)):
        module = kind()
        module.D = torch.nn.Parameter(torch.ones(3))
        assert upstream.wrap(module).D.dtype == dtype


def test_a_second_wrap_and_one_of_frozen_parameters_leave_them_too(upstream: Upstream) -> None:
    fix.enable()
    given = mixer_of(MIXERS[-1]).requires_grad_(False)
    before = given.D.clone()
    upstream.wrap(upstream.wrap(given))
    assert torch.equal(given.D, before) and not given.D.requires_grad


def test_a_mixer_that_was_made_in_16_bits_and_one_whose_mark_says_no_are_cast(upstream: Upstream) -> None:
    fix.enable()
    assert upstream.wrap(mixer_of(MIXERS[-1], torch.bfloat16), torch.float16).D.dtype == torch.float16
    given = mixer_of(MIXERS[-1])
    given.D.keep_in_fp32 = False
    upstream.wrap(given)
    assert given.D.dtype == torch.bfloat16 and given.A_log.dtype == torch.float32


@pytest.mark.parametrize("upstream", [("marked", "0.19.2")], indirect=True)
def test_refuses_a_wrapper_that_honours_the_mark_by_a_cast_of_its_own(upstream: Upstream) -> None:
    assert fix.probe().state == "mixer_parameters_rounded"
    with pytest.raises(Refused, match="did not take"):
        fix.enable()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_marked_keeps_its_bits_with_its_gradient_and_the_rest_is_cast(upstream: Upstream, dtype: torch.dtype) -> None:
    fix.enable()
    given = mixer()
    given[0].dt_bias.grad, given[1].weight.grad = torch.full((3,), 1 / 3), torch.ones(3, 3)
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    parameter, hooks = given[0].dt_bias, dict(vars(given))
    got = upstream.wrap(given, dtype)
    assert got is given and got[0].dt_bias is parameter and dict(vars(given)).keys() == hooks.keys()
    for name, tensor in got.state_dict().items():
        kept = name in ("0.dt_bias", "0.scale", "0.count")
        wanted = before[name] if kept else before[name].to(dtype)
        assert tensor.dtype == wanted.dtype and torch.equal(tensor, wanted), name
    assert torch.equal(parameter.grad, torch.full((3,), 1 / 3)) and given[1].weight.grad.dtype == dtype
    assert fix.status()["counts"] == {"served": 1, "kept": 2} and fix.status()["mode"] == "exact"
    assert given.half()[0].dt_bias.dtype == torch.float16  # asked for by name, after the wrap


def test_without_it_the_mark_is_lost(upstream: Upstream) -> None:
    assert upstream.wrap(mixer())[0].dt_bias.dtype == torch.bfloat16


def test_a_module_in_which_nothing_stays_goes_to_the_release_untouched(upstream: Upstream) -> None:
    fix.enable()
    assert {t.dtype for t in upstream.wrap(mixer(marked=False)).parameters()} == {torch.bfloat16}
    assert fix.status()["counts"] == {"served": 0, "kept": 0}


def test_a_module_of_its_own_cast_has_it_back(upstream: Upstream) -> None:
    fix.enable()
    given = mixer()
    own = given.bfloat16
    given.bfloat16 = own
    assert upstream.wrap(given)[0].dt_bias.dtype == torch.float32
    assert vars(given)["bfloat16"] is own and "half" not in vars(given)


@pytest.mark.parametrize("upstream", [("right", "0.20.0")], indirect=True)
def test_is_not_needed_where_the_release_is_right(upstream: Upstream) -> None:
    assert fix.probe().state == "right" and not fix.enable()["on"]


@pytest.mark.parametrize("upstream", [("idle", "0.19.2"), ("raising", "0.19.2")], indirect=True)
def test_refuses_a_wrapper_that_does_something_else(upstream: Upstream) -> None:
    assert fix.probe().state == "unknown"
    with pytest.raises(Refused, match="not cast|could not be wrapped"):
        fix.enable()


@pytest.mark.parametrize("upstream", [("faulty", "0.19.1")], indirect=True)
def test_refuses_what_was_not_measured(upstream: Upstream) -> None:
    with pytest.raises(Refused, match=r"not verified on \S+ 0\.19\.1"):
        fix.enable()
    assert not fix.status()["on"]


def test_refuses_a_wrapper_that_somebody_has_changed(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    original = upstream.wrapper.__init__
    monkeypatch.setattr(upstream.wrapper, "__init__", lambda self, *args: original(self, *args))
    with pytest.raises(Refused, match="wrapped already"):
        fix.enable()


def test_puts_the_very_original_back(upstream: Upstream) -> None:
    original = vars(upstream.wrapper)["__init__"]
    fix.enable()
    assert vars(upstream.wrapper)["__init__"] is not original
    fix.disable()
    assert vars(upstream.wrapper)["__init__"] is original
