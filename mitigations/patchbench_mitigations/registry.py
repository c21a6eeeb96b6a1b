"""Which mitigations there are, what the environment asks for, when they act, and what became of them.

PATCHBENCH_MITIGATE         slug[:mode],…   these, loudly: one that refuses raises where its upstream module is imported
                            auto            every one whose probe sees its bug; refusals are logged
                            off             none, whatever else asks (the kill switch)
PATCHBENCH_FORCE            slug,…          act outside what was measured; every message and the status say so
PATCHBENCH_MITIGATE_STATUS  a folder        each process writes its status there: JSON, and Prometheus text
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import sys
import threading
from types import ModuleType
from typing import Any

from patchbench_mitigations import ranks
from patchbench_mitigations.after_import import LOG, Refused, when_imported

MODE_AUTO = "auto"
HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data")
_refused: dict[str, dict[str, Any]] = {}


@functools.cache
def load_op(name: str) -> str:
    """Makes patchbench::<name> callable, from libpatchbench_ops.so (PATCHBENCH_OPS_LIB, or lib/ of this package) unless it
    is already; "" on success, else why not."""
    import torch

    path = os.environ.get("PATCHBENCH_OPS_LIB") or os.path.join(HERE, "lib", "libpatchbench_ops.so")
    if not hasattr(torch.ops.patchbench, name):
        if not os.path.exists(path):
            return f"no op library at {path}"
        try:
            torch.ops.load_library(path)
        except OSError as e:
            return f"{os.path.basename(path)} does not load into torch {torch.__version__}: {str(e).splitlines()[0]}"
    return "" if hasattr(torch.ops.patchbench, name) else f"{os.path.basename(path)} holds no patchbench::{name}"


def known() -> list[str]:
    """Every slug of which data are shipped, those that need no mitigation included."""
    return sorted(name[:-5] for name in os.listdir(DATA) if name.endswith(".json"))


@functools.cache
def data_of(slug: str) -> dict[str, Any]:
    """What the evidence shows of one slug: package, target, modes, and by release what was seen, the record of its verified
    mitigation and the digests of its functions; or `not_needed`, with why. env/mitigation_data.py writes it, nobody else.
    ValueError for an unknown slug."""
    if slug not in known():
        import difflib

        close = difflib.get_close_matches(slug, known(), 1)
        hint = f"did you mean {close[0]}?" if close else f"one of: {', '.join(known())}"
        raise ValueError(f"PATCHBENCH_MITIGATE: no mitigation {slug!r}; {hint}")
    with open(os.path.join(DATA, f"{slug}.json"), encoding="utf-8") as file:
        return json.load(file)


def slugs() -> list[str]:
    """Every slug that has a mitigation."""
    return [slug for slug in known() if "not_needed" not in data_of(slug)]


def module_of(slug: str) -> ModuleType:
    """A mitigation's module: `probe`, `enable`, `disable`, `status` and SLUG. It imports torch."""
    return importlib.import_module(f"patchbench_mitigations.{slug}")


def parse(value: str) -> list[tuple[str, str]]:
    """The (slug, mode) pairs of a list `slug[:mode],…`; ValueError for an unknown slug or mode, or one named twice. Imports
    no mitigation."""
    pairs: dict[str, str] = {}
    for word in filter(None, (w.strip() for w in value.split(","))):
        slug, _, mode = word.partition(":")
        modes = data_of(slug).get("modes", [MODE_AUTO])
        if (mode or MODE_AUTO) not in modes:
            raise ValueError(f"PATCHBENCH_MITIGATE: {slug} has no mode {mode!r}; one of: {', '.join(modes)}")
        if slug in pairs:
            raise ValueError(f"PATCHBENCH_MITIGATE: {slug} is named twice")
        pairs[slug] = mode or MODE_AUTO
    return list(pairs.items())


def is_forced(slug: str) -> bool:
    """Whether PATCHBENCH_FORCE names the slug."""
    return slug in (w.strip() for w in os.environ.get("PATCHBENCH_FORCE", "").split(","))


def apply(value: str) -> None:
    """Arranges for what `value` (see the module's text) asks. A mitigation acts right after the upstream module it changes
    is imported, or now if it is: nothing heavy is imported on its behalf."""
    value = value.strip()
    is_auto = value == MODE_AUTO
    pairs = [] if value == "off" else [(slug, MODE_AUTO) for slug in slugs()] if is_auto else parse(value)
    if value:
        ranks.watch()
    for slug, mode in pairs:
        data = data_of(slug)
        if "not_needed" in data:
            records = ", ".join(digest[:12] for digest in data["not_needed"]["records"]) or "none"
            LOG.warning("%s: not needed: %s (records: %s)", slug, data["not_needed"]["why"], records)
        else:
            act = functools.partial(_enable_or_log if is_auto else _enable, slug, mode)
            when_imported(data["target"], act, data["target"].partition(".")[0])


def _enable(slug: str, mode: str) -> None:
    module_of(slug).enable(mode)


def _enable_or_log(slug: str, mode: str) -> None:
    try:
        _enable(slug, mode)
    except ranks.RanksDiffer:
        raise
    except Refused as e:
        LOG.warning("%s", e)


# ---- what became of them ----


def note_refusal(slug: str, why: str) -> None:
    """Remembers a refusal for `status`."""
    _refused[slug] = {"count": _refused.get(slug, {"count": 0})["count"] + 1, "last": why}
    write_status()


def status() -> dict[str, Any]:
    """{"asked", "forced", "rank", "mitigations": {slug: its status()}, "refusals": {slug: {"count", "last"}}} of this process, and
    "watch": watch.summary() where that is on; imports no mitigation."""
    loaded = {slug: sys.modules.get(f"patchbench_mitigations.{slug}") for slug in slugs()}
    shown = {slug: module.status() if module else {"slug": slug, "on": False} for slug, module in loaded.items()}
    watch = sys.modules.get("patchbench_mitigations.watch")
    watched = {"watch": watch.summary()} if watch else {}
    return {"asked": os.environ.get("PATCHBENCH_MITIGATE", ""), "forced": os.environ.get("PATCHBENCH_FORCE", ""),
            "rank": ranks.rank(), "mitigations": shown, "refusals": dict(_refused), **watched}  # fmt: skip


def _sample(name: str, value: int, **labels: Any) -> str:
    """One line of Prometheus' text format."""
    pairs = []
    for key, text in labels.items():
        escaped = str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{key}="{escaped}"')
    return f"patchbench_mitigation_{name}{{{','.join(pairs)}}} {value}"


def prometheus() -> str:
    """`status()` in Prometheus' text format, for a collector of text files."""
    shown = status()
    rank = {} if shown["rank"] is None else {"rank": shown["rank"]}
    on = [one for one in shown["mitigations"].values() if one["on"]]
    families = {
        "on gauge": [
            _sample("on", int(one["on"]), slug=slug, mode=one.get("mode", ""), version=one.get("version", ""), **rank)
            for slug, one in shown["mitigations"].items()
        ],
        "tainted gauge": [_sample("tainted", int(bool(one["tainted"])), slug=one["slug"], **rank) for one in on],
        "events_total counter": [
            _sample("events_total", count, slug=one["slug"], event=event, **rank)
            for one in on for event, count in one["counts"].items()
        ],
        "refusals_total counter": [
            _sample("refusals_total", one["count"], slug=slug, **rank) for slug, one in shown["refusals"].items()
        ],
        "watched_calls_total counter": [
            _sample("watched_calls_total", place["calls"] + place["traced"], slug=one["slug"], state=one["state"], version=one["version"],
                    file=place["file"], line=place["line"], function=place["function"], **{"class": one["class"]}, **rank)
            for one in shown.get("watch", {"classes": []})["classes"] for place in one["places"]
        ],
    }  # fmt: skip
    return "".join(f"# TYPE patchbench_mitigation_{name}\n" + "\n".join(lines) + "\n" for name, lines in families.items() if lines)


def write_status() -> None:
    """Writes `status()` into the folder that PATCHBENCH_MITIGATE_STATUS names, if any: `[rankN-]PID.json` and `.prom`, each
    whole at any moment. Called when a mitigation acts, is first used or refuses, and at exit; by whom else wants it newer."""
    folder = os.environ.get("PATCHBENCH_MITIGATE_STATUS")
    if not folder:
        return
    _write_at_exit()
    shown = status()
    stem = f"{'' if shown['rank'] is None else 'rank' + str(shown['rank']) + '-'}{os.getpid()}"
    try:
        os.makedirs(folder, exist_ok=True)
        for name, text in ((f"{stem}.json", json.dumps(shown, indent=1) + "\n"), (f"{stem}.prom", prometheus())):
            unfinished = os.path.join(folder, f".{name}.{threading.get_ident()}")
            with open(unfinished, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(unfinished, os.path.join(folder, name))
    except OSError as e:
        LOG.warning("PATCHBENCH_MITIGATE_STATUS: %s", e)


@functools.cache
def _write_at_exit() -> None:
    atexit.register(write_status)
