"""The stand-ins of fp8_storage_dispatch and its readers, on plain tensors: neither upstream is needed."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch

ROOT = Path(__file__).parents[2] / "repro"


def load(name: str, path: Path) -> ModuleType:
    """A module from its file; its siblings have to be in `sys.modules` already."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stand_in() -> ModuleType:
    with mock.patch.dict(sys.modules, {"absent": load("fp8_absent", ROOT / "harness" / "absent.py")}):
        sys.modules["tile_interpreter"] = load("fp8_tile_interpreter", ROOT / "harness" / "tile_interpreter.py")
        return load("fp8_stand_in", ROOT / "fp8_storage_dispatch" / "stand_in.py")


@pytest.fixture(scope="module")
def subject(stand_in: ModuleType) -> ModuleType:
    """The pack's subject, with nothing installed for it."""
    runtime = load("fp8_subject_runtime", ROOT / "harness" / "subject_runtime.py")
    siblings = {"absent": sys.modules["fp8_absent"], "stand_in": stand_in, "subject_runtime": runtime}
    with mock.patch.dict(sys.modules, siblings), mock.patch.object(stand_in, "install", lambda: None):
        load("fp8_wrappers", ROOT / "fp8_storage_dispatch" / "fp8_wrappers.py")
        return load("fp8_subject", ROOT / "fp8_storage_dispatch" / "subject.py")


class Versioned:
    """Answers with the capsule that carries a DLPack version."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self) -> object:
        return self.tensor.__dlpack__(max_version=(1, 0))


def test_dlpack_pointer_reads_both_capsules(subject: ModuleType) -> None:
    tensor = torch.arange(12.0).view(3, 4)[1:]
    assert subject.dlpack_pointer(tensor) == tensor.data_ptr()
    assert subject.dlpack_pointer(Versioned(tensor)) == tensor.data_ptr()


def test_dlpack_pointer_of_a_storage_less_wrapper_is_null(subject: ModuleType) -> None:
    kind = type("StorageLess", (torch.Tensor,), {"__torch_dispatch__": classmethod(lambda *_: NotImplemented)})
    wrapper = torch.Tensor._make_wrapper_subclass(kind, (2, 3), dtype=torch.bfloat16)
    assert wrapper.numel() == 6 and subject.dlpack_pointer(wrapper) == 0


def test_dequantize_scales_a_tensor_as_a_whole(stand_in: ModuleType) -> None:
    values = torch.tensor([[1.0, -2.0], [448.0, 0.0]])
    stored = SimpleNamespace(_data=values.to(torch.float8_e4m3fn).view(torch.uint8), _scale_inv=torch.tensor([0.5]), _fp8_dtype=7)
    assert torch.equal(stand_in.dequantize(stored, 6), (values * 0.5).to(torch.bfloat16))


def test_dequantize_scales_each_32_of_a_row(stand_in: ModuleType) -> None:
    values = torch.ones(3, 1, 64)
    stored = SimpleNamespace(
        _rowwise_data=values.to(torch.float8_e4m3fn).view(torch.uint8),
        _rowwise_scale_inv=torch.tensor([[127, 128], [126, 127], [130, 120]], dtype=torch.uint8),
        _fp8_dtype=7,
    )
    scales = torch.tensor([[1.0, 2.0], [0.5, 1.0], [8.0, 2.0**-7]]).repeat_interleave(32, dim=1)
    assert torch.equal(stand_in.dequantize(stored, 4), scales.view(3, 1, 64))


def test_absent_module_decorates_and_is_subclassed(stand_in: ModuleType) -> None:
    absent = stand_in.Absent("nowhere")

    @absent.jit(threads=1)
    def twice(x: int) -> int:
        return 2 * x

    class Child(absent.Base):
        pass

    assert twice(2) == 4 and Child.__mro__ == (Child, object) and list(absent) == []


def test_absent_finder_answers_for_its_own_packages_alone(stand_in: ModuleType) -> None:
    finder = load("fp8_absent", ROOT / "harness" / "absent.py").AbsentFinder(stand_in.ABSENT, {"tilelang.language": {"x": 3}})
    assert not finder.find_spec("tilelangs") and not finder.find_spec("torch")
    module = importlib.util.module_from_spec(finder.find_spec("tilelang.language"))
    finder.exec_module(module)
    assert module.x == 3 and list(module.y.z(4)) == [] and module.jit(len) is not None


def test_only_a_warning_that_names_the_type_is_an_announcement(subject: ModuleType) -> None:
    handler = subject.Announcements({"Float8Tensor"})
    logger = logging.getLogger("fp8_stand_in_test")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        logger.info("gives up Float8Tensor")
        logger.warning("something else")
        logger.warning("gives up %s", "Float8Tensor")
    finally:
        logger.removeHandler(handler)
    assert handler.texts == ["gives up Float8Tensor"]
