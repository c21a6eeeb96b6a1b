"""What every mitigation shares: when it may act, how its functions are placed and taken back, what it counts and says.

A slug's module is a `Mitigation` of its own: what the release has, what is wrong with it, what stands in for it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from patchbench_mitigations import fingerprint, ranks, registry
from patchbench_mitigations.after_import import LOG, Refused, is_killed
from patchbench_mitigations.callees import Callees
from patchbench_mitigations.registry import MODE_AUTO

ABSENT = object()
_lock = threading.RLock()
_first_use = threading.RLock()  # its holder may wait for other ranks: nothing else waits for it


@dataclass
class Finding:
    """What the installed release's own code does: `right`, `unknown`, or a name for what is wrong, with what was seen;
    `sites` where several functions were looked at, each with what it does."""

    state: str
    version: str
    reason: str = ""
    sites: dict[str, str] = field(default_factory=dict)


@dataclass
class Placement:
    """What takes an attribute's place on a module or class. With `package` it does so wherever a module of that package
    holds the same object; `original` may be ABSENT, for a name that a class inherits."""

    holder: Any
    name: str
    original: Any
    placed: Any
    label: str
    package: str = ""

    def put(self, held: Any, given: Any) -> None:
        """`given` in the place of `held`."""
        if given is ABSENT:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, given)
        for name, module in list(sys.modules.items()) if self.package else ():
            if name.partition(".")[0] == self.package and isinstance(module, ModuleType):
                for key in [key for key, value in list(vars(module).items()) if value is held]:
                    setattr(module, key, given)


@dataclass
class Hook:
    """A mitigation that is on: what was found and placed, how calls are served, and how many were."""

    mode: str
    finding: Finding
    op_note: str  # why the op is not used, "" where it is
    taint: str  # what PATCHBENCH_FORCE overrode, "" for nothing
    owner: Mitigation
    counts: Counter[str]
    same_code_as: str = ""  # the verified release whose functions these are, where the version is another
    placements: list[Placement] = field(default_factory=list)
    callees: Callees = field(default_factory=lambda: Callees(()))
    said: set[str] = field(default_factory=set)
    is_proving: bool = True
    is_used: bool = False

    def serve(self, **amounts: int) -> None:
        """Counts what a replaced function did. The first time it says so and compares the ranks: Refused if they differ.
        Nothing happens while torch.compile traces: what runs is the graph, which counts nothing."""
        if torch.compiler.is_compiling() or self.is_proving:
            return
        if not self.is_used:
            self._begin()
        with _lock:
            self.counts.update(amounts)

    def leaves(self) -> bool:
        """Whether what the replaced functions call is the user's own by now: then the release runs, which is said once."""
        if torch.compiler.is_compiling() or not (name := self.callees.changed()):
            return False
        with _lock:
            is_new = name not in self.said
            self.said.add(name)
        if is_new:
            self.owner.say("left to the release: %s was replaced since", name)
        return True

    def _begin(self) -> None:
        with _first_use:
            if not self.is_used:
                ranks.compare_asked()
                ranks.compare_state(self.owner.told_as, self.owner.told())
                self.is_used = True
                self.owner.say("first use, mode %s", self.mode)
                registry.write_status()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """While a probe computes: it starts no pool of threads, on which a child that is forked afterwards would wait for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def saveable(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor without its graph; a copy of one that was made in inference mode, which no backward may keep."""
    if tensor is None or not tensor.is_inference() or torch.is_inference_mode_enabled():
        return None if tensor is None else tensor.detach()
    return tensor.clone()


def probe_device() -> str | None:
    """Where a Triton kernel can be asked: a GPU, or the CPU under Triton's interpreter."""
    if torch.cuda.is_available():
        return "cuda"
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else None


class Mitigation:
    """One slug's mitigation; the subclass brings the knowledge, `enable`, `disable`, `probe` and `status` are these.

    `package` is the distribution's name, `op` what serves where its library loads, `counted` the names of the counts and
    `keys` the functions whose source the fingerprint takes."""

    slug: str
    package: str
    op: str
    counted: tuple[str, ...]
    keys: tuple[str, ...]
    force_lifts_unknown = False

    def __init__(self) -> None:
        self.hook: Hook | None = None
        self.is_right = False
        self.num_switched = 0  # a run may change a mode, on all its ranks
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def modes(self) -> list[str]:
        """What `enable` takes: "auto", and the modes of the pack's manifest, which the shipped data repeat."""
        return registry.data_of(self.slug)["modes"]

    # ---- the slug's knowledge ----

    def meaning(self, mode: str) -> str:
        """The mode that is meant; "auto" may mean another mode."""
        return mode

    def op_note(self, mode: str) -> str:
        """Why the op is not used in this mode, "" where it is; Refused for a mode that cannot be had."""
        raise NotImplementedError

    def release(self) -> tuple[Any, str]:
        """What the installed release has, in the slug's own form, and its version; Refused for what cannot be changed."""
        raise NotImplementedError

    def look(self, release: Any, version: str) -> Finding:
        """What the release's own code does on a tiny problem; nothing is changed."""
        raise NotImplementedError

    def objection(self, release: Any, finding: Finding) -> str:
        """Why the mitigation must not act even if forced; "" for nothing."""
        return ""

    def placements(self, release: Any, hook: Hook) -> list[Placement]:
        """What is to be placed. Nothing is yet; a placement may name what an earlier one places as its original."""
        raise NotImplementedError

    def left(self, release: Any, hook: Hook) -> str:
        """What is still wrong with everything placed, "" for nothing."""
        raise NotImplementedError

    def served_by(self, hook: Hook) -> str:
        """What computes in place of the release."""
        return "plain torch" if hook.op_note else self.op

    # ---- the switch ----

    def probe(self) -> Finding:
        """What the installed release's own code does, whether or not the mitigation is on."""
        with _lock, one_thread():
            return self.hook.finding if self.hook is not None else self.look(*self.release())

    def enable(self, mode: str = MODE_AUTO) -> dict[str, Any]:
        """Switches the mitigation on if the installed release is measured and seen to be wrong, and proves it by the same
        probe; all functions or none. Idempotent; a call with another mode changes the mode. Returns `status()`. Refused
        (nothing placed) as README.md says; ValueError for an unknown mode."""
        if mode not in self.modes:
            raise ValueError(f"{self.slug}: no mode {mode!r}; one of: {', '.join(self.modes)}")
        mode = self.meaning(mode)
        with _lock:
            if is_killed():
                self.say("PATCHBENCH_MITIGATE=off: not switched on")
                return self.status()
            if self.hook is not None and self.hook.mode == mode:
                return self.status()
            try:
                self._switch_to(mode)
            finally:
                self._announce()
            return self.status()

    def _switch_to(self, mode: str) -> None:
        note = self.op_note(mode)
        self._put_back()
        release, version = self.release()
        with one_thread():
            finding = self.look(release, version)
        self.is_right = finding.state == "right"
        if self.is_right:
            text = "not needed: %s %s is right (%s): this mitigation can be retired"
            self.say(text, self.package, version, finding.reason)
        else:
            counts = Counter(dict.fromkeys(self.counted, 0))
            taint, same_code_as = self._evidence(release, finding)
            self._place(release, Hook(mode, finding, note, taint, self, counts, same_code_as))

    @property
    def told_as(self) -> str:
        """The name of the state that is told."""
        return f"{self.slug}/{self.num_switched}"

    def _announce(self) -> None:
        self.num_switched += 1
        ranks.watch()
        ranks.tell()
        ranks.compare_state(self.told_as, self.told())
        registry.write_status()

    def _evidence(self, release: Any, finding: Finding) -> tuple[str, str]:
        """What PATCHBENCH_FORCE overrides, and the other release that was measured in place of this one; Refused for what
        PATCHBENCH_FORCE does not name or cannot."""
        if why := self.objection(release, finding):
            raise self.refusal(why)
        measured, why = fingerprint.measured_as(self.slug, finding.version, self.keys)
        doubts = [why]
        if finding.state == "unknown":
            why = f"{self.package} {finding.version}: {finding.reason}"
            if not self.force_lifts_unknown:
                raise self.refusal(why)
            doubts.append(why)
        doubts = [doubt for doubt in doubts if doubt]
        if doubts and not registry.is_forced(self.slug):
            raise self.refusal(f"{doubts[0]}; PATCHBENCH_FORCE={self.slug} acts nevertheless")
        return "; ".join(doubts), "" if measured == finding.version else measured

    def _place(self, release: Any, hook: Hook) -> None:
        self.hook = hook
        finding = hook.finding
        try:
            hook.placements = self.placements(release, hook)
            originals = [placement.original for placement in hook.placements]
            if name := Callees(originals).foreign():
                raise self.refusal(f"{name}, which it would replace or pass over, is not the release's own; undo that first")
            for placement in hook.placements:
                placement.put(placement.original, placement.placed)
            hook.callees = Callees(originals)
            with one_thread():
                left = self.left(release, hook)
        except BaseException:
            self._take_back()
            raise
        if left:
            self._take_back()
            raise self.refusal(f"the fix did not take on {self.package} {finding.version} ({left}); it is off again")
        hook.is_proving = False
        sites = ", ".join(dict.fromkeys(placement.label for placement in hook.placements))
        same = f" (same code as {hook.same_code_as})" if hook.same_code_as else ""
        text = "on for %s %s%s, mode %s, by %s: %s (%s)"
        self.say(text, self.package, finding.version, same, hook.mode, self.served_by(hook), finding.reason or finding.state, sites)

    def _take_back(self) -> None:
        hook, self.hook = self.hook, None
        for placement in reversed(hook.placements):
            if vars(placement.holder).get(placement.name) is placement.placed:
                placement.put(placement.placed, placement.original)

    def disable(self) -> dict[str, Any]:
        """Puts the originals back, the very objects. Idempotent. Refused (nothing changed) if one was changed since."""
        with _lock:
            if self.hook is not None:
                self._put_back()
                self._announce()
            return self.status()

    def _put_back(self) -> None:
        last = {(id(p.holder), p.name): p for p in self.hook.placements} if self.hook is not None else {}
        for placement in last.values():
            if vars(placement.holder).get(placement.name, ABSENT) is not placement.placed:
                raise self.refusal(f"{placement.label} was changed since; undo that first")
        if self.hook is not None:
            self._take_back()

    def status(self) -> dict[str, Any]:
        """{"slug", "on"}, and while on: mode, version, state and reason of the probe, the verified release whose code this
        is if it is called otherwise, served_by, why the op is not used, the functions that are replaced, what was counted
        since, and what was forced."""
        with _lock:
            if (hook := self.hook) is None:
                return {"slug": self.slug, "on": False}
            found = {"version": hook.finding.version, "state": hook.finding.state, "reason": hook.finding.reason}
            sites = list(dict.fromkeys(placement.label for placement in hook.placements))
            return {"slug": self.slug, "on": True, "mode": hook.mode, **found, "same_code_as": hook.same_code_as,
                    "served_by": self.served_by(hook), "op_note": hook.op_note, "sites": sites, "counts": dict(hook.counts),
                    "used": hook.is_used, "tainted": hook.taint}  # fmt: skip

    def told(self) -> str:
        """The state that all ranks must share, in one line."""
        shown = self.status()
        if shown["on"]:
            return " ".join(str(shown[name]) for name in ("mode", "version", "state", "served_by"))
        return "not needed" if self.is_right else "off"

    # ---- what it says ----

    def _mark(self) -> str:
        tainted = f" [tainted: PATCHBENCH_FORCE; {self.hook.taint}]" if self.hook is not None and self.hook.taint else ""
        return tainted + ("" if (rank := ranks.rank()) is None else f" [rank {rank}]")

    def say(self, text: str, *words: Any) -> None:
        """One WARNING of this slug, with the rank and the taint."""
        LOG.warning("%s: " + text + "%s", self.slug, *words, self._mark())

    def installed_class(self, target: str, name: str, methods: tuple[str, ...], wanted: str = "") -> tuple[type, str]:
        """A class of the installed package, and the package's version; Refused where it, or one of the methods, is not the module's own.
        `wanted` is what has to be installed, where the package alone does not say it."""
        try:
            found = getattr(importlib.import_module(target), name, None)
        except ImportError as e:
            raise self.refusal(f"{target} cannot be imported ({e}); is {wanted or self.package} installed?") from e
        if found is None:
            raise self.refusal(f"{name} is not in {target}; it has changed since it was measured")
        for method in methods:
            if not hasattr(found, method):
                raise self.refusal(f"{name}.{method} is not in {target}; it has changed since it was measured")
            if not fingerprint.own_function(getattr(found, method), sys.modules[target]):
                raise self.refusal(f"{name}.{method} is wrapped already; undo that first")
        return found, fingerprint.installed_version(self.package, target)

    def refusal(self, text: str) -> Refused:
        """A Refused of this slug, to be raised; counted."""
        registry.note_refusal(self.slug, text)
        return Refused(f"{self.slug}: {text}{self._mark()}")

    def _after_fork(self) -> None:
        """A child counts for itself, and no thread of its parent holds a lock there."""
        global _lock, _first_use
        _lock, _first_use = threading.RLock(), threading.RLock()
        if self.hook is not None:
            self.hook.counts, self.hook.is_used = Counter(dict.fromkeys(self.counted, 0)), False


class Arguments:
    """A call's arguments by name, in no more than lists and dictionaries: torch.compile traces them without a break."""

    def __init__(self, signature: inspect.Signature):
        parameters = signature.parameters.values()
        self.signature = signature
        self.names = [p.name for p in parameters]
        self.num_positional = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def of(self, args: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Any]:
        """Every argument, defaults applied; TypeError for a call that the function does not take."""
        given = {**dict(zip(self.names, args)), **words}  # noqa: B905  too many are fewer than they were
        whole = {**self.defaults, **given}
        is_taken = len(args) <= self.num_positional and len(given) == len(args) + len(words)
        if not is_taken or len(whole) != len(self.names):
            self.signature.bind(*args, **words)
        return whole

    def call(self, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        """The function with these arguments."""
        positional = [given[name] for name in self.names[: self.num_positional]]
        return function(*positional, **{name: given[name] for name in self.names[self.num_positional :]})
