"""Counts the calls that meet a condition, for `watch`. A watched function is called with the very arguments and returns the very result.

A place is the line that called: the innermost one outside of the upstream's package, torch and this package. A backward is of the place
that called its forward. Where torch.compile traces, a call is counted once for each trace; conditions on values are not looked at there.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OURS = ("patchbench_mitigations", "torch", "functools", "contextlib")
FAR = sys.maxsize  # the position of an argument that is never given by position
_lock = threading.RLock()
_callers: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()  # of each forward, by its ctx
_watches: list[Watch] = []
_num_steps = [0]
_after_steps: list[tuple[int, Callable[[], None]]] = []


class _Inside(threading.local):
    """What the calls that are under way in this thread were counted as: a function inside of them is a part of the same call."""

    met: tuple[tuple[str, str], ...] = ()


_inside = _Inside()


@dataclass(eq=False)
class OnDevice:
    """How many calls met, added up on a device; `read` is what the newest copy that has arrived says."""

    total: Any
    read: int = 0
    copy: Any = None
    arrived: Any = None

    def refresh(self) -> None:
        """Takes a copy that has arrived and sends the next; waits for nothing. Only CUDA tells when a copy has arrived."""
        import torch

        if self.total.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            with torch.cuda.device(self.total.device):
                self.take(self.arrived or torch.cuda.Event())

    def take(self, arrived: Any) -> None:
        """As `refresh`; `arrived` is an event that is recorded behind the copy."""
        import torch

        if self.copy is None:
            self.copy, self.arrived = torch.zeros((), dtype=torch.int64, pin_memory=self.total.is_cuda), arrived
        elif not arrived.query():
            return
        else:
            self.read = int(self.copy)
        self.copy.copy_(self.total, non_blocking=True)
        arrived.record()

    def finish(self) -> None:
        """Waits for every stream of the device."""
        if self.total.is_cuda:
            sys.modules["torch"].cuda.synchronize(self.total.device)
        self.read = int(self.total)


@dataclass(eq=False)
class Row:
    """What was counted of one class at one place."""

    watch: Watch
    place: Place
    count: int = 0
    num_traced: int = 0
    first_step: int = 0  # of the calls that were counted; the one under way is one more than those that have ended
    on_device: dict[Any, OnDevice] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.count + sum(one.read for one in self.on_device.values())

    def add(self, found: Any) -> None:
        """A call that met, or a tensor that says whether it did. A CPU's tensor is read now."""
        if found is not True and hasattr(found, "device"):
            if found.device.type != "cpu":
                self._add_on_device(found)
                return
            if not bool(found):
                return
        self.count += 1
        self.first_step = self.first_step or _num_steps[0] + 1

    def _add_on_device(self, found: Any) -> None:
        import torch

        device = found.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        one = self.on_device.get((device, stream))
        with torch.no_grad():
            if one is None:
                with torch.inference_mode(False):
                    one = self.on_device[device, stream] = OnDevice(torch.zeros((), dtype=torch.int64, device=device))
            one.total += found

    def refresh(self, is_last: bool) -> None:
        for one in self.on_device.values():
            one.finish() if is_last else one.refresh()
        if self.on_device and self.total:
            self.first_step = self.first_step or _num_steps[0] or 1


@dataclass(eq=False)
class Place:
    """A line of the user's."""

    file: str
    line: int
    code: Any  # kept: it is known by its id
    rows: dict[int, Row] = field(default_factory=dict)


def _asking(condition: Callable[..., Any], places: tuple[tuple[str, int, Any], ...]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """What a condition says of a call. Of one argument in a form of its own: that takes half the time."""
    if len(places) == 1:
        ((only, at, otherwise),) = places
        return lambda args, words: condition(args[at] if at < len(args) else words.get(only, otherwise))
    return lambda args, words: condition(*[args[i] if i < len(args) else words.get(name, default) for name, i, default in places])


@dataclass(eq=False)
class Watch:
    """One class of one pack at one function of the installed release."""

    slug: str
    name: str
    function: str
    condition: Callable[..., Any]
    places: tuple[tuple[str, int, Any], ...]  # of the condition's arguments: name, position, default
    looked_at: str
    is_part: bool
    is_of_values: bool
    num_calls: int = 0
    num_left: int = 0  # calls that could not be looked at
    why_left: str = ""
    rows: list[Row] = field(default_factory=list)
    number: int = -1

    def __post_init__(self) -> None:
        self.key, self.number = (self.slug, self.name), len(_watches)
        self.holds = _asking(self.condition, self.places)
        _watches.append(self)

    def leave(self, why: str) -> None:
        with _lock:
            self.num_left += 1
            self.why_left = self.why_left or why


# Dynamo calls these while it traces, with what it takes for constants; they leave nothing in the graph.
def _traced(number: int) -> int:
    watch = _watches[number]
    place = _traced_place(watch)
    with _lock:
        row = _row(watch, place)
        row.num_traced += 1
        row.first_step = row.first_step or _num_steps[0] + 1
        watch.num_calls += 1
    return 0


def _traced_unread(number: int) -> int:
    _watches[number].leave("inside of torch.compile")
    return 0


_traced._dynamo_marked_constant = _traced_unread._dynamo_marked_constant = True  # what torch.compiler.assume_constant_result does
_traced_places: dict[tuple[str, int], Place] = {}


def _traced_place(watch: Watch) -> Place:
    """The line that is traced, as far as torch tells it."""
    file, line = "inside of torch.compile", 0
    try:
        from torch._guards import TracingContext

        stack = TracingContext.extract_stack() or []
    except (ImportError, AttributeError):  # of a torch that tells it in another way
        stack = []
    root = os.sep + watch.function.partition(".")[0] + os.sep
    for one in reversed(stack):
        is_inner = root in one.filename or any(os.sep + name + os.sep in one.filename for name in OURS)
        if not is_inner and not one.filename.startswith("<"):
            file, line = one.filename, one.lineno
            break
    return _traced_places.setdefault((file, line), Place(file, line, None))


def _row(watch: Watch, place: Place) -> Row:
    row = place.rows.get(watch.number)
    if row is None:
        row = place.rows[watch.number] = Row(watch, place)
        watch.rows.append(row)
    return row


class Point:
    """A watched function: which classes are looked for at its calls, and from where it was called."""

    def __init__(self, function: str, half: str = ""):
        """`half` is "forward" or "backward" of an autograd Function, "" of another function."""
        self.watches: list[Watch] = []
        self.roots = (function.partition(".")[0], *OURS)
        self.is_forward, self.is_backward = half == "forward", half == "backward"
        self.found: dict[tuple[int, int], Place] = {}
        self.inner: dict[int, tuple[bool, Any]] = {}  # by id of a code

    def _is_inner(self, frame: Any) -> bool:
        code = frame.f_code
        is_inner = code.co_filename.startswith("<") or str(frame.f_globals.get("__name__")).partition(".")[0] in self.roots
        self.inner[id(code)] = (is_inner, code)
        return is_inner

    def caller(self, frame: Any) -> Place:
        """The place outside of the upstream and torch that led to a frame."""
        first = frame
        while frame is not None:
            known = self.inner.get(id(frame.f_code))
            if not (known[0] if known is not None else self._is_inner(frame)):
                break
            frame = frame.f_back
        frame = frame or first
        key = (id(frame.f_code), frame.f_lasti)
        place = self.found.get(key)
        if place is None:
            place = self.found[key] = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code)
        return place

    def place(self, args: tuple[Any, ...], frame: Any) -> Place:
        if self.is_backward and (place := _callers.get(args[0])) is not None:
            return place
        return self.caller(frame)

    def look(self, args: tuple[Any, ...], words: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        """Counts a call: the classes whose condition it meets. Raises nothing."""
        met: tuple[tuple[str, str], ...] = ()
        place = None
        if self.is_forward:
            place = _callers[args[0]] = self.caller(sys._getframe(2))
        inside = _inside.met
        with _lock:
            for watch in self.watches:
                if inside and watch.key in inside:
                    continue
                if watch.is_of_values and _is_captured():
                    watch.leave("inside of a CUDA graph")
                    continue
                watch.num_calls += 1
                try:
                    found = watch.holds(args, words)
                    if found is False or found is None:
                        continue
                    if place is None:
                        place = self.place(args, sys._getframe(2))
                    (place.rows.get(watch.number) or _row(watch, place)).add(found)
                    met += (watch.key,)
                except Exception as error:
                    watch.leave(f"{type(error).__name__}: {error}")
        return met

    def trace(self, args: tuple[Any, ...], words: dict[str, Any]) -> None:
        """Counts a call that torch.compile traces."""
        for watch in self.watches:
            if watch.is_of_values:
                _traced_unread(watch.number)
                continue
            try:
                is_met = watch.holds(args, words)
            except Exception:  # counted as not looked at; the program goes on
                _traced_unread(watch.number)
                continue
            if is_met:
                _traced(watch.number)


def _is_captured() -> bool:
    torch = sys.modules["torch"]
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def watching(original: Callable[..., Any], point: Point) -> Callable[..., Any]:
    """The function, with its calls counted."""
    import torch

    is_compiling, look, trace = torch.compiler.is_compiling, point.look, point.trace

    @functools.wraps(original)
    def watched(*args: Any, **words: Any) -> Any:
        if is_compiling():
            trace(args, words)
            return original(*args, **words)
        met = look(args, words)
        if not met:
            return original(*args, **words)
        before = _inside.met
        _inside.met = before + met
        try:
            return original(*args, **words)
        finally:
            _inside.met = before

    return watched


# ---- steps ----


def num_steps() -> int:
    """The steps of every optimizer of this process that have ended, outside of torch.compile."""
    return _num_steps[0]


def _stepped(*_: Any) -> None:
    if sys.modules["torch"].compiler.is_compiling():
        return
    _num_steps[0] += 1
    for every, act in _after_steps:
        if _num_steps[0] % every == 0:
            act()


def count_steps(every: int, act: Callable[[], None]) -> None:
    """Counts steps from now on; torch.optim.optimizer has been imported. `act` is called after every so many."""
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(_stepped)
    _after_steps.append((every, act))


def refresh(is_last: bool = False) -> None:
    """Reads what was added up on devices, as far as it has arrived; the last time it waits."""
    for watch in _watches:
        for row in list(watch.rows):
            try:
                row.refresh(is_last)
            except Exception as error:  # a device that has failed ends no program here
                watch.leave(f"a count cannot be read: {type(error).__name__}")


def _after_fork() -> None:
    """A child counts for itself."""
    global _lock
    _lock = threading.RLock()
    _num_steps[0] = 0
    for watch in _watches:
        watch.num_calls, watch.num_left = 0, 0
        for row in watch.rows:
            row.count = row.num_traced = row.first_step = 0
            row.on_device.clear()


os.register_at_fork(after_in_child=_after_fork)
