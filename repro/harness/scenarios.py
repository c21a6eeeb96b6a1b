"""Scenarios: a case as it is met inside a program, not as the one call of a fresh process.

A scenario runs a pack's `run(case)` as it is. It replaces torch's two ways to a backward and `requires_grad_` while the subject
runs, so that it can act between forward and backward, and on the tensors that the subject differentiates. Its outputs must be
those of the case alone: the judge compares them with the same reference.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from subject_runtime import Unsupported
from torch.utils.checkpoint import checkpoint

Outputs = dict[str, torch.Tensor]
Run = Callable[[Any], Outputs]
Call = Callable[[], Any]

FROZEN_RUNS = 8
BUSY_CYCLES = 10_000_000  # about 5 ms of a GPU
GRAD, BACKWARD, REQUIRE = torch.autograd.grad, torch.Tensor.backward, torch.Tensor.requires_grad_
_subject: dict[str, Any] | None = None  # the globals of the subject's module


class Stop(Exception):
    """Ends a subject between its forward and its backward."""


@contextlib.contextmanager
def hooked(
    on_backward: Callable[..., Any] | None = None, on_leaf: Callable[[torch.Tensor], torch.Tensor] | None = None, every: bool = False
) -> Iterator[None]:
    """Calls `on_backward(call, inputs, outputs, by)` in place of the first backward, or of every one, and `on_leaf(tensor)` in place of
    each `tensor.requires_grad_()` in the subject's own module. `inputs` is None for `Tensor.backward`."""
    done = False

    def first(call: Call, inputs: Any, outputs: Any, by: Any) -> Any:
        nonlocal done
        if done or on_backward is None:
            return call()
        done = not every
        return on_backward(call, inputs, outputs, by)

    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *rest: Any, **options: Any) -> Any:
        inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
        return first(lambda: GRAD(outputs, inputs, grad_outputs, *rest, **options), inputs, outputs, grad_outputs)

    def backward(tensor: torch.Tensor, gradient: Any = None, *rest: Any, **options: Any) -> Any:
        return first(lambda: BACKWARD(tensor, gradient, *rest, **options), None, tensor, gradient)

    def require(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        is_subjects = sys._getframe(1).f_globals is _subject
        return on_leaf(tensor) if on_leaf is not None and requires_grad and is_subjects else REQUIRE(tensor, requires_grad)

    torch.autograd.grad, torch.Tensor.backward, torch.Tensor.requires_grad_ = grad, backward, require
    try:
        yield
    finally:
        torch.autograd.grad, torch.Tensor.backward, torch.Tensor.requires_grad_ = GRAD, BACKWARD, REQUIRE


class Leaves(list[torch.Tensor]):
    """The tensors that a subject differentiates, in the order in which it asks for their gradients."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        self.append(tensor)
        return REQUIRE(tensor)

    def give(self, inputs: Any, grads: list[torch.Tensor]) -> Any:
        """Returns what a backward returns, or sets `.grad` as `Tensor.backward` does."""
        if inputs is not None:
            return tuple(grads)
        for leaf, grad in zip(self, grads, strict=True):
            leaf.grad = grad
        return None


def number_of(case: Any) -> int:
    """A number that the case's name gives: which order, which tensor."""
    return int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:4], "big")


def leaves_of(run: Run, case: Any) -> Leaves:
    """Runs a copy of a case, and returns what it differentiates."""
    leaves = Leaves()
    with hooked(on_leaf=leaves.plain):
        run(case.fresh())
    return leaves


def nothing(tensor: torch.Tensor) -> torch.Tensor:
    """A gradient of NaN in place of one that was not computed: `given` leaves it out."""
    return torch.full_like(tensor, float("nan"))


def given(outputs: Outputs) -> Outputs:
    """The outputs that are made of something; one must be left."""

    def is_nothing(tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() and tensor.numel() > 0 and bool(tensor.isnan().all())

    kept = {name: tensor for name, tensor in outputs.items() if not (name.startswith("grad_") and is_nothing(tensor))}
    if not kept:
        raise Unsupported("the subject's outputs are gradients alone")
    return kept


def twice(run: Run, case: Any) -> Outputs:
    """The same call on other values, then the case."""
    run(case.other())
    return run(case)


def after(run: Run, case: Any) -> Outputs:
    run(case.neighbour())
    return run(case)


def two_live(run: Run, case: Any) -> Outputs:
    """Three forwards before any backward, of other values and of a neighbour, too; the case's backward is the first or the last."""
    acted = False

    def last(call: Call, *_: Any) -> Any:
        nonlocal acted
        acted = True
        run(case.other())
        with contextlib.suppress(Unsupported):
            run(case.neighbour("site"))
        return call()

    def first(call: Call, *_: Any) -> Any:
        result = None

        def innermost(other: Call, *_: Any) -> Any:
            nonlocal acted, result
            acted = True
            result = call()
            return other()

        def inner(other: Call, *_: Any) -> Any:
            with contextlib.suppress(Unsupported), hooked(innermost):
                run(case.neighbour("site"))
            return innermost(other) if not acted else other()

        with hooked(inner):
            run(case.other())
        return result

    with hooked(first if number_of(case) % 2 else last):
        outputs = run(case)
    if not acted:
        raise Unsupported("the subject has no backward")
    return outputs


def state_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.grad is None, dict(tensor.__dict__)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def inputs_kept(run: Run, case: Any) -> Outputs:
    """`kept/<tensor>`: how many elements of an argument have other bits afterwards, and 1 if anything else of it changed."""
    copies = {name: tensor.detach().clone() for name, tensor in case.tensors.items()}
    states = {name: state_of(tensor) for name, tensor in case.tensors.items()}
    outputs = run(case)
    for name, tensor in case.tensors.items():
        changed = int((bits(copies[name]) != bits(tensor)).sum()) + (state_of(tensor) != states[name])
        outputs[f"kept/{name}"] = torch.tensor([float(changed)])
    return outputs


def frozen_run(run: Run, case: Any, at: int, is_alone: bool) -> Outputs:
    """One differentiable argument alone is frozen, or all but one. A gradient that nobody asked for is left out; one that was asked for
    and is None is zero, as an optimizer takes it."""
    leaves = Leaves()

    def on_leaf(tensor: torch.Tensor) -> torch.Tensor:
        leaves.append(tensor)
        return tensor if (len(leaves) - 1 == at) == is_alone else REQUIRE(tensor)

    def on_backward(call: Call, inputs: Any, outputs: Any, by: Any) -> Any:
        live = [tensor for tensor in inputs or leaves if tensor.requires_grad]
        grads = GRAD(outputs, live, by, retain_graph=True, allow_unused=True)
        found = iter(torch.zeros_like(tensor) if grad is None else grad for tensor, grad in zip(live, grads, strict=True))
        return leaves.give(inputs, [next(found) if tensor.requires_grad else nothing(tensor) for tensor in inputs or leaves])

    with hooked(on_backward, on_leaf, every=True):
        return given(run(case))


def frozen(run: Run, case: Any) -> Outputs:
    """Each differentiable argument alone is frozen, then all but each, FROZEN_RUNS ways at most. An output is, element by element, the
    value that is farthest from that of a run in which nothing is frozen."""
    num_leaves = len(leaves_of(run, case))
    if num_leaves < 2:
        raise Unsupported("the subject differentiates fewer than two arguments")
    ways = [(at, is_alone) for is_alone in (True, False) for at in range(num_leaves)]
    first = number_of(case) % len(ways)
    whole, farthest = run(case.fresh()), {}
    for at, is_alone in (ways[first:] + ways[:first])[:FROZEN_RUNS]:
        for name, got in frozen_run(run, case.fresh(), at, is_alone).items():
            if name not in farthest or got.shape != whole[name].shape:
                farthest[name] = got
            elif farthest[name].shape == got.shape:
                is_farther = (got - whole[name]).abs() > (farthest[name] - whole[name]).abs()
                farthest[name] = torch.where(is_farther | got.isnan(), got, farthest[name])
    return farthest


def without_backward(mode: Callable[[], Any]) -> Callable[[Run, Any], Outputs]:
    def scenario(run: Run, case: Any) -> Outputs:
        leaves = Leaves()

        def on_leaf(tensor: torch.Tensor) -> torch.Tensor:
            leaves.append(tensor)
            return tensor

        def on_backward(_: Call, inputs: Any, *__: Any) -> Any:
            return leaves.give(inputs, [nothing(tensor) for tensor in inputs or leaves])

        with mode(), hooked(on_backward, on_leaf, every=True):
            return given(run(case))

    return scenario


def from_op(run: Run, case: Any) -> Outputs:
    """Each differentiable argument is the result of an operator."""
    num_made = 0

    def on_leaf(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal num_made
        num_made += 1
        made = REQUIRE(tensor).mul(1)
        made.retain_grad()
        return made

    with hooked(on_leaf=on_leaf):
        outputs = run(case)
    if num_made == 0:
        raise Unsupported("the subject differentiates no argument")
    return outputs


def adds_up(run: Run, case: Any) -> Outputs:
    """`.grad` is there before and is added to: half of twice the gradient comes out."""
    earlier: list[torch.Tensor] = []
    leaves = Leaves()

    def collect(_: Call, inputs: Any, outputs: Any, by: Any) -> Any:
        if not (inputs or leaves):
            raise Unsupported("the subject differentiates what the case does not name")
        grads = list(GRAD(outputs, inputs or leaves, by, retain_graph=True))
        earlier.extend(grad.detach().clone() for grad in grads)
        return leaves.give(inputs, grads)

    def add(_: Call, inputs: Any, outputs: Any, by: Any) -> Any:
        targets = inputs or leaves
        for tensor, grad in zip(targets, earlier, strict=True):
            tensor.grad = grad
        torch.autograd.backward(outputs, by, retain_graph=True, inputs=list(targets))
        return leaves.give(inputs, [tensor.grad / 2 for tensor in targets])

    with hooked(collect, leaves.plain):
        run(case.fresh())
    if not earlier:
        raise Unsupported("the subject has no backward")
    leaves.clear()
    with hooked(add, leaves.plain):
        return run(case)


def raised_between(run: Run, case: Any) -> Outputs:
    """A program raises between forward and backward, and goes on with a whole step."""

    def stop(*_: Any) -> Any:
        raise Stop

    with hooked(stop):
        try:
            run(case.fresh())
        except Stop:
            pass
        else:
            raise Unsupported("the subject has no backward")
    return run(case)


def checkpointed(run: Run, case: Any) -> Outputs:
    """The forward lies in a non-reentrant checkpoint: it runs again in the backward."""
    held: dict[str, Any] = {}
    leaves = [REQUIRE(leaf.detach()) for leaf in leaves_of(run, case)]
    if not leaves:
        raise Unsupported("the subject differentiates what the case does not name")

    def forward(*arguments: torch.Tensor) -> Any:
        next_leaf = iter(arguments)

        def stop(_: Call, inputs: Any, outputs: Any, by: Any) -> Any:
            held.update(inputs=inputs, outputs=outputs, by=by)
            raise Stop

        with hooked(stop, lambda _: next(next_leaf)):
            try:
                run(case)
            except Stop:
                return held["outputs"]
        raise Unsupported("the subject has no backward")

    result = checkpoint(forward, *leaves, use_reentrant=False)
    order = [next(i for i, leaf in enumerate(leaves) if leaf is tensor) for tensor in held["inputs"] or leaves]
    grads = list(GRAD(result, [leaves[i] for i in order], held["by"]))
    again = Leaves()
    with hooked(lambda _, inputs, *__: again.give(inputs, grads), again.plain):
        return run(case.fresh())


def threads(run: Run, case: Any) -> Outputs:
    """Two threads run at the same time; the case is one, the same case with other values the other."""
    found: dict[str, Any] = {}

    def work(name: str, one: Any) -> None:
        try:
            found[name] = run(one)
        except BaseException as error:
            found["error"] = error

    started = [threading.Thread(target=work, args=pair) for pair in (("case", case), ("other", case.other()))]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if "error" in found:
        raise found["error"]
    return found["case"]


def forked(run: Run, case: Any) -> Outputs:
    """A child of a process that has imported the package and computed nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file, raised = Path(folder) / "outputs.pt", Path(folder) / "raised"
        child = os.fork()
        if child == 0:
            try:
                torch.save({name: tensor.detach() for name, tensor in run(case).items()}, file)
            except BaseException as error:
                raised.write_text(f"{type(error).__name__}: {error}")
            os._exit(0)
        os.waitpid(child, 0)
        if raised.exists() or not file.exists():
            raise RuntimeError(f"the child: {raised.read_text() if raised.exists() else 'ended without outputs'}")
        return torch.load(file)


def autocast(run: Run, case: Any) -> Outputs:
    """The forward lies in autocast of the case's own half precision, the backward does not."""
    halves = [tensor.dtype for tensor in case.tensors.values() if tensor.dtype in (torch.float16, torch.bfloat16)]
    if not halves:
        raise Unsupported("no tensor of the case is in half precision")
    kind = torch.device(case.device).type

    def outside(call: Call, *_: Any) -> Any:
        with torch.autocast(kind, enabled=False):
            return call()

    with torch.autocast(kind, dtype=halves[0]), hooked(outside, every=True):
        return run(case)


def compiled(run: Run, case: Any) -> Outputs:
    """What torch.compile traces of the subject; what it does not runs as it is."""
    torch._dynamo.reset()
    return torch.compile(run, backend="aot_eager")(case)


def entries_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters and buffers, and the gradients that are there."""
    found = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])
    return found | {f"{name}.grad": tensor.grad for name, tensor in found.items() if tensor.grad is not None}


def num_changed(module: torch.nn.Module, before: dict[str, torch.Tensor]) -> int:
    """How many bytes differ from `before`; a tensor that is missing, or of another dtype or shape, counts as one."""
    now, count = entries_of(module), 0
    for name in now.keys() | before.keys():
        old, new = before.get(name), now.get(name)
        is_alike = old is not None and new is not None and (old.dtype, old.shape) == (new.dtype, new.shape)
        count += int((bits(old) != bits(new)).sum()) if is_alike else 1
    return count


def in_copied(case: Any, module: torch.nn.Module) -> torch.nn.Module:
    """A deep copy, whose values come from a file of the module's state_dict. Parameters lose their gradients in torch's copy."""
    made, file = copy.deepcopy(module), io.BytesIO()
    torch.save(module.state_dict(), file)
    with torch.no_grad():
        for tensor in made.state_dict().values():
            tensor.zero_()
    file.seek(0)
    made.load_state_dict(torch.load(file))
    for old, new in zip(module.parameters(), made.parameters(), strict=True):
        new.grad = None if old.grad is None else old.grad.clone()
    before = {name: tensor.detach().clone() for name, tensor in entries_of(module).items()}
    case.modules.append(lambda: num_changed(module, before))
    return made


def in_tied(case: Any, module: torch.nn.Module) -> torch.nn.Module:
    """One part that owns parameters has a twin with the same parameters, as `<part>.twin`. Each gives half of the output."""
    parts = [part for part in module.modules() if next(part.parameters(recurse=False), None) is not None]
    part = parts[number_of(case) % len(parts)]
    twin = copy.deepcopy(part, {id(parameter): parameter for parameter in part.parameters()})

    def with_twin(_: Any, args: Any, options: Any, out: torch.Tensor) -> torch.Tensor:
        case.modules.append(twin)
        return (out + twin(*args, **options)) / 2

    part.add_module("twin", twin)
    part.register_forward_hook(with_twin, with_kwargs=True)
    return module


def in_evaluated(case: Any, module: torch.nn.Module) -> torch.nn.Module:
    """Before each forward of a training step comes one of `eval()` under `no_grad` on the same arguments."""

    def evaluate(_: Any, args: Any, options: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        case.modules.append(module)
        modes = [(part, part.training) for part in module.modules()]
        with torch.no_grad():
            module.eval()(*args, **options)
        for part, was_training in modes:
            part.training = was_training

    module.register_forward_pre_hook(evaluate, with_kwargs=True)
    return module


MODULES = {"copied": in_copied, "tied": in_tied, "evaluated": in_evaluated}


def of_modules(run: Run, case: Any) -> Outputs:
    """Acts where the subject passes its module to `case.module`. `kept/module`: how many bytes of a copied one changed."""
    outputs = run(case)
    if not case.modules:
        raise Unsupported("the subject passes no module to its case, or runs none")
    if case.axes["scenario"] == "copied":
        outputs["kept/module"] = torch.tensor([float(sum(changed() for changed in case.modules))])
    return outputs


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """All that its storage holds, each element once: an expanded tensor cannot be written to."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def fill(other: Any, case: Any) -> None:
    for name, tensor in other.tensors.items():
        stored(tensor).copy_(stored(case.tensors[name]))


def streams(run: Run, case: Any) -> Outputs:
    """On a stream of its own, which gets the case's values late. Work on another stream computes with other values."""
    late, stream = case.other(), torch.cuda.Stream(case.device)
    torch.cuda.synchronize(case.device)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        fill(late, case)
        outputs = run(late)
    stream.synchronize()
    return outputs


def captured(run: Run, case: Any) -> Outputs:
    """Captured in a CUDA graph over other values, which is replayed over the case's."""
    replayed = case.other()
    run(case.fresh())  # loads and tunes kernels
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(case.device)
    with torch.cuda.graph(graph):
        outputs = run(replayed)
    fill(replayed, case)
    graph.replay()
    torch.cuda.synchronize(case.device)
    return outputs


SCENARIOS: dict[str, Callable[[Run, Any], Outputs]] = {
    "twice": twice, "after": after, "two_live": two_live, "inputs_kept": inputs_kept, "frozen": frozen,
    "no_grad": without_backward(torch.no_grad), "inference_mode": without_backward(torch.inference_mode), "from_op": from_op,
    "adds_up": adds_up, "raised_between": raised_between, "checkpointed": checkpointed, "threads": threads, "forked": forked,
    "autocast": autocast, "compiled": compiled, **dict.fromkeys(MODULES, of_modules), "streams": streams, "captured": captured,
}  # fmt: skip


def in_scenario(run: Run, case: Any) -> Outputs:
    """`run(case)` in the case's scenario, axis `scenario`; as it is without one."""
    global _subject
    _subject = getattr(run, "__globals__", None)
    scenario = case.axes.get("scenario")
    return run(case) if scenario is None else SCENARIOS[scenario](run, case)
