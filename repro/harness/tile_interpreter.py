"""Runs TileLang kernels as they are written, on the CPU, one block of the grid after the other, where no GPU could.

`tilelang` and `tilelang.language` are stood in for by the part of the language that the sparse-MLA kernels use. Every buffer is a
torch tensor of the dtype that the kernel declares, so that a value is rounded where the kernel stores it; arithmetic on fp32 is
fp32, a gemm's sum is fp32 in another order than a GPU's. Memory that a kernel allocates begins as NaN. A body of `T.Parallel` is run
once on whole index tensors; an `if` within it becomes a mask. A tensor that begins at no multiple of 16 bytes raises, as a GPU does
where the compiler loads 16 bytes at once. Not modelled: pipelining, layouts, races, what else a compiler does.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import math
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from absent import Absent

LOADED_BYTES = 16
MASKS: list[torch.Tensor] = []
KINDS = {"bool": torch.bool, "bfloat16": torch.bfloat16, "float": torch.float32, "float32": torch.float32, "int32": torch.int32}


class Extent:
    """A dimension that is known once a kernel is given its tensors."""

    def __init__(self, name: str) -> None:
        self.name, self.value = name, -1

    def __index__(self) -> int:
        return self.value

    __int__ = __index__

    def __mul__(self, other: int) -> int:
        return self.value * other

    def __sub__(self, other: int) -> int:
        return self.value - other


def places(index: Any, shape: torch.Size) -> tuple[Any, ...]:
    """An index with Extents as numbers and index tensors as int64, held inside the buffer where a mask may hide a lane."""
    found = []
    for one, size in zip(index if isinstance(index, tuple) else (index,), shape, strict=False):
        if isinstance(one, torch.Tensor):
            one = one.long().clamp(max=size - 1) if MASKS else one.long()
        elif not isinstance(one, slice):
            one = int(one)
        found.append(one)
    return tuple(found)


def unmasked(*values: torch.Tensor) -> list[torch.Tensor]:
    """Flat values of the lanes that no mask hides, all broadcast against one another."""
    spread = torch.broadcast_tensors(*values, *MASKS)
    is_on = torch.stack(spread[len(values) :]).all(0) if MASKS else None
    return [value.flatten() if is_on is None else value[is_on] for value in spread[: len(values)]]


class Buffer:
    """A tensor of a kernel; a read of it remembers its place, for the atomics."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.dtype, self.shape = data, data.dtype, data.shape

    def __getitem__(self, index: Any) -> torch.Tensor:
        at = places(index, self.shape)
        value = self.data[at]
        value.place = (self.data, at)
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        at = places(index, self.shape)
        if not MASKS:
            self.data[at] = torch.as_tensor(value).to(self.dtype)
            return
        *lanes, value = unmasked(*(torch.as_tensor(one) for one in at), torch.as_tensor(value))
        self.data[tuple(lanes)] = value.to(self.dtype)


def tensor_of(side: Buffer | torch.Tensor) -> torch.Tensor:
    return side.data if isinstance(side, Buffer) else side


def allocate(shape: Any, dtype: Any, *_: Any, **__: Any) -> Buffer:
    kind = KINDS.get(dtype, dtype)
    return Buffer(torch.full([int(size) for size in shape], float("nan") if kind.is_floating_point else 0, dtype=kind))


def copy(source: Any, target: Any) -> None:
    """Whole tiles; of one that reaches over the end of a tensor the part within, the rest is 0."""
    to, given = tensor_of(target), tensor_of(source)
    if to.numel() == given.numel():
        to.copy_(given.reshape(to.shape))
        return
    common = tuple(slice(min(sizes)) for sizes in zip(to.shape, given.shape, strict=True))
    kept = given[common].to(to.dtype)
    to.zero_()
    to[common] = kept


def gemm(
    a: Buffer, b: Buffer, c: Buffer, transpose_A: bool = False, transpose_B: bool = False, policy: Any = None, clear_accum: bool = False
) -> None:
    """c += a b with fp32 sums; operands of two dtypes are taken as they are, whatever a compiler says to them."""
    left, right = a.data.float(), b.data.float()
    product = (left.T if transpose_A else left) @ (right.T if transpose_B else right)
    c.data.copy_(product if clear_accum else c.data + product)


def reduce_with(reduction: Callable[..., torch.Tensor], joined: Callable[..., torch.Tensor]) -> Callable[..., None]:
    def reduce(source: Buffer, target: Buffer, dim: int = -1, clear: bool = True) -> None:
        found = reduction(source.data, dim)
        target.data.copy_(found if clear else joined(target.data, found))

    return reduce


def atomic_addx4(target: torch.Tensor, source: torch.Tensor) -> None:
    """Adds four neighbours in the last dimension; lanes that meet at one place all count."""
    (data, to), (values, at) = target.place, source.place
    four = torch.arange(4)

    def lanes(index: tuple[Any, ...]) -> list[torch.Tensor]:
        return unmasked(*(torch.as_tensor(one) for one in index))

    wide = [[*(one[:, None] for one in index[:-1]), index[-1][:, None] + four] for index in (lanes(to), lanes(at))]
    data.index_put_(tuple(wide[0]), values[tuple(wide[1])], accumulate=True)


def larger(a: Any, b: Any) -> Any:
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b)) if isinstance(a, torch.Tensor) else max(a, b)


def parallel(*extents: int) -> Iterator[Any]:
    grid = [torch.arange(int(e)).view([-1 if i == j else 1 for j in range(len(extents))]) for i, e in enumerate(extents)]
    yield grid[0] if len(extents) == 1 else tuple(grid)


@contextlib.contextmanager
def masked(condition: Any) -> Iterator[None]:
    MASKS.append(torch.as_tensor(condition))
    yield
    MASKS.pop()


class Masking(ast.NodeTransformer):
    """`if` inside a loop over T.Parallel -> `with masked`; a kernel's annotations and decorators go."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list = []
        for argument in node.args.args:
            argument.annotation = None
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.For:
        is_parallel = "Parallel" in ast.unparse(node.iter)
        for inner in list(ast.walk(node)) if is_parallel else ():
            for name, body in ast.iter_fields(inner):
                if name == "body" and isinstance(body, list):
                    inner.body = [self.mask(one) if isinstance(one, ast.If) else one for one in body]
        return self.generic_visit(node)

    @staticmethod
    def mask(node: ast.If) -> ast.With:
        if node.orelse:
            raise NotImplementedError("an else in a loop over T.Parallel")
        call = ast.Call(ast.Name("masked", ast.Load()), [node.test], [])
        return ast.With([ast.withitem(call)], node.body)


class PrimFunc:
    """A kernel's body and what it says of its tensors."""

    def __init__(self, body: Callable[..., None]) -> None:
        self.specs = [(tuple(shape), dtype) for shape, dtype in inspect.get_annotations(body, eval_str=False).values()]
        tree = ast.fix_missing_locations(Masking().visit(ast.parse(textwrap.dedent(inspect.getsource(body)))))
        names = {**body.__globals__, **inspect.getclosurevars(body).nonlocals, "masked": masked}
        exec(compile(tree, inspect.getfile(body), "exec"), names)
        self.body = names[body.__name__]


class Grid:
    """T.Kernel: gives the block that is being run, and learns how many there are."""

    extents: tuple[int, ...] = ()
    block: tuple[int, ...] = (0, 0, 0)

    @staticmethod
    @contextlib.contextmanager
    def kernel(*extents: Any, threads: int = 128) -> Iterator[Any]:
        Grid.extents = tuple(int(extent) for extent in extents)
        block = Grid.block[: len(extents)]
        yield block if len(extents) > 1 else block[0]


def launch(function: PrimFunc, out_idx: list[int], given: tuple[torch.Tensor, ...]) -> Any:
    """Runs every block; what `out_idx` names is allocated and returned."""
    count = len(function.specs)
    outputs = [idx % count for idx in out_idx]
    rest = iter(given)
    tensors = [None if i in outputs else next(rest) for i in range(count)]
    for tensor, (shape, dtype) in zip(tensors, function.specs, strict=True):
        if tensor is None:
            continue
        if tensor.dtype != dtype or len(shape) != tensor.dim():
            raise TypeError(f"a kernel wants {dtype} of rank {len(shape)}, got {tensor.dtype} {list(tensor.shape)}")
        for extent, size in zip(shape, tensor.shape, strict=True):
            if isinstance(extent, Extent):
                extent.value = size
            elif extent != size:
                raise TypeError(f"a kernel wants {extent}, got {list(tensor.shape)}")
        if tensor.data_ptr() % LOADED_BYTES:
            raise RuntimeError(f"misaligned address: a kernel loads {LOADED_BYTES} bytes at a time, a tensor begins between two of them")
    buffers = [allocate(*spec) if tensor is None else Buffer(tensor) for tensor, spec in zip(tensors, function.specs, strict=True)]
    Grid.block = (0, 0, 0)
    function.body(*buffers)
    for block in itertools.islice(itertools.product(*map(range, Grid.extents)), 1, None):
        Grid.block = block
        function.body(*buffers)
    made = [buffers[i].data for i in outputs]
    return made[0] if len(made) == 1 else tuple(made)


def jit(out_idx: list[int] = (), **_: Any) -> Callable[..., Any]:
    """tilelang.jit: a factory of kernels whose result can be called with tensors."""

    def decorate(factory: Callable[..., PrimFunc]) -> Callable[..., Any]:
        def build(*words: Any, **named: Any) -> Callable[..., Any]:
            function = factory(*words, **named)
            return lambda *given: launch(function, list(out_idx), given)

        return build

    return decorate


def module_of(name: str, **members: Any) -> types.ModuleType:
    module = Absent(name)
    module.__spec__ = ModuleSpec(name, None)
    for member, value in members.items():
        setattr(module, member, value)
    return module


def modules() -> dict[str, types.ModuleType]:
    """The stand-in for `tilelang` and `tilelang.language`."""
    language = module_of(
        "tilelang.language",
        bfloat16=torch.bfloat16, float8_e4m3fn=torch.float8_e4m3fn, float32=torch.float32, int32=torch.int32,
        Tensor=lambda shape, dtype: (shape, KINDS.get(dtype, dtype)), dynamic=Extent, prim_func=PrimFunc, Kernel=Grid.kernel,
        alloc_shared=allocate, alloc_fragment=allocate, copy=copy, gemm=gemm, atomic_addx4=atomic_addx4,
        fill=lambda buffer, value: buffer.data.fill_(value), clear=lambda buffer: buffer.data.zero_(),
        reduce_max=reduce_with(torch.amax, torch.maximum), reduce_sum=reduce_with(torch.sum, torch.add),
        Parallel=parallel, Pipelined=lambda count, num_stages=0: range(int(count)), unroll=range, ceildiv=lambda a, b: -(-int(a) // int(b)),
        exp2=torch.exp2, log2=torch.log2, max=larger, cast=lambda value, kind: value.to(kind), if_then_else=torch.where,
        infinity=lambda _: math.inf,
    )  # fmt: skip
    numbers = module_of("tilelang.math", next_power_of_2=lambda x: 1 << (int(x) - 1).bit_length())
    tilelang = module_of("tilelang", language=language, math=numbers, jit=jit, cdiv=language.ceildiv)
    return {"tilelang": tilelang, "tilelang.language": language}


def install() -> None:
    """Puts the part of TileLang in place for good. Call before the package is imported."""
    sys.modules.update(modules())
