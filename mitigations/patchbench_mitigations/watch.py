"""Counts, without changing a result, the calls of a running program that meet a known bug's condition.

  python -m patchbench_mitigations watch [--json FILE] [--every N] SCRIPT ARGS…
  python -m patchbench_mitigations watch [--json FILE] [--every N] -m MODULE ARGS…
  torchrun --nproc-per-node 8 -m patchbench_mitigations watch SCRIPT ARGS…

  --json FILE   write the summary to FILE, too, at exit and every N steps; each rank writes its own:
                out.json, on rank 1 out.rank1.json
  --every N     read what is counted on a GPU every N optimizer steps, without a wait (100)

At exit each process writes a table to stderr, with its rank in front of each line:

  [rank 1] met the condition of liger_flce_none_bwd/wrong_gradients: 3 of 3 calls;
           liger-kernel 0.8.0, record f7c285de1db5
  [rank 1]   train.py:17: 3 calls, first in step 1

The line is the caller's in your code. A step is a step() of an optimizer. A call counts where the
shipped records show that class in the installed release. A release without a record is "not known":
its calls are counted apart. "met a part": its arguments meet, and nothing else was looked at.
Where torch.compile traces, shapes and arguments count once a trace; values are "not looked at".
Nothing is mitigated: PATCHBENCH_MITIGATE must not be set. PATCHBENCH_MITIGATE_STATUS=FOLDER writes
the counts as Prometheus text. Processes that the program starts are watched, too.
A script that is called watch is started as ./watch.
Exit: the program's; 2 for a wrong option.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from patchbench_mitigations import counting, ranks, registry
from patchbench_mitigations.after_import import when_imported

ENVIRONMENT = "PATCHBENCH_WATCH"
FOLDER = os.path.join(registry.DATA, "watch")
PLAIN = (str, int, float, bool, type(None))
NOT_LOOKED_AT, NOT_KNOWN, NOT_SHOWN, NOT_CALLED = "not_looked_at", "not_known", "not_shown", "not_called"
MET, MET_PART, NOT_MET = "met", "met_part", "not_met"
_options: dict[str, Any] = {}  # of the watch that is on
_placed: dict[tuple[int, str], tuple[Any, str, Any, Any, counting.Point]] = {}  # holder, name, original, placed, point
_tried: dict[tuple[str, str], str] = {}  # of a class: why it is not looked at in the module that was imported


# ---- what is looked for ----


@functools.cache
def packs() -> dict[str, dict[str, Any]]:
    """The shipped data of every pack, by slug."""
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".json"))
    found = {}
    for name in names:
        with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
            found[name[:-5]] = json.load(file)
    return found


def _own_calls(slug: str) -> dict[str, dict[str, Callable[..., Any]]]:
    """What conditions/<slug>.py has; nothing where there is none."""
    if not os.path.exists(os.path.join(registry.HERE, "conditions", f"{slug}.py")):
        return {}
    return importlib.import_module(f"patchbench_mitigations.conditions.{slug}").CALLS


@functools.cache
def calls() -> dict[str, list[tuple[str, str, Any]]]:
    """By dotted name of a callable, what is looked for there: slug, class, and a condition or the `arguments` of a manifest's rule."""
    found: dict[str, list[tuple[str, str, Any]]] = {}
    for slug, pack in packs().items():
        own = _own_calls(slug)
        classes = {name for rows in own.values() for name in rows}
        for call, rows in own.items():
            found.setdefault(call, []).extend((slug, name, condition) for name, condition in rows.items())
        for name, row in pack["classes"].items():
            for rule in row["rules"] if name not in classes else ():
                for call in rule.get("calls", []):
                    found.setdefault(call, []).append((slug, name, rule.get("arguments", [])))
    known = {call: [row for row in rows if _package_of(row[0], call)] for call, rows in found.items()}
    return {call: rows for call, rows in known.items() if rows}


def _module_of(call: str) -> str:
    """The module of a callable: what comes before a class, or before the last name."""
    parts = call.split(".")
    return ".".join(parts[: next((i for i, part in enumerate(parts) if part[0].isupper()), len(parts) - 1)])


def _package_of(slug: str, call: str) -> str:
    return packs()[slug]["modules"].get(call.partition(".")[0], "")


def _calls_of(slug: str, name: str) -> list[str]:
    return [call for call, rows in calls().items() if any(row[:2] == (slug, name) for row in rows)]


def _is_one_of(values: list[Any]) -> Callable[[Any], bool]:
    """Whether a value equals one of these, as Python compares: what runs takes 1 for True."""
    known = frozenset(values)
    return lambda value: isinstance(value, PLAIN) and value in known


def _meeting(spec: dict[str, Any]) -> Callable[[Any], bool]:
    """Whether a value is one that a manifest's rule takes for the condition's."""
    is_known = _is_one_of(spec.get("unless", spec.get("values", [])))
    if "unless" in spec:
        return lambda value: not is_known(value)
    return is_known if "values" in spec else lambda _: True


def _of_rule(specs: list[dict[str, Any]]) -> tuple[Callable[..., bool], str]:
    """The condition of a manifest's rule, and what it looks at."""
    names = ", ".join(spec["name"] for spec in specs)
    said = f"The argument{'s' * (len(specs) > 1)} {names}, nothing else." if specs else "That it is called, nothing else."
    tests = [_meeting(spec) for spec in specs]
    if len(tests) == 1:
        return tests[0], said
    return lambda *values: all([test(value) for test, value in zip(tests, values)]), said  # noqa: B905, C419  as many; no generator


def _wanted(condition: Any) -> list[tuple[str, int | None, Any]]:
    """The arguments that are read: name, position by the rule, default by the condition."""
    if isinstance(condition, list):
        return [(spec["name"], spec.get("position"), spec.get("default", inspect.Parameter.empty)) for spec in condition]
    return [(p.name, None, p.default) for p in inspect.signature(condition).parameters.values()]


def _watch_for(slug: str, name: str, function: str, condition: Any, original: Any, num_hidden: int) -> counting.Watch | str:
    """A class at a function, or the reason against it. `num_hidden` arguments of the function come before those that the rule counts."""
    empty = inspect.Parameter.empty
    try:
        parameters = inspect.signature(original).parameters
    except (TypeError, ValueError):
        return f"{function} has no signature"
    names = list(parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    places = []
    for argument, position, default in _wanted(condition):
        if argument in parameters:
            given = parameters[argument]
            default = default if given.default is empty else given.default
            places.append((argument, counting.FAR if given.kind is given.KEYWORD_ONLY else names.index(argument), default))
        elif default is not empty:
            is_there = position is not None and position + num_hidden < len(names)
            if isinstance(condition, list) and not is_there and not takes_any:
                return f"{function} takes no argument {argument}"
            places.append((argument, position + num_hidden if is_there else counting.FAR, default))
        else:
            return f"{function} takes no argument {argument}"
    while not isinstance(condition, list) and places and places[-1][0] not in parameters:
        places.pop()  # the condition's own default
    is_rule = isinstance(condition, list)
    holds, said = _of_rule(condition) if is_rule else (condition, inspect.getdoc(condition) or "")
    is_part = is_rule or getattr(condition, "is_part", False)
    return counting.Watch(slug, name, function, holds, tuple(places), said, is_part, getattr(condition, "is_of_values", False))


# ---- releases ----


_versions: dict[str, str] = {}  # by package, once a module of it was imported


def _know_version(package: str, module: str) -> None:
    """Asks once what version is installed; "unknown" where nothing says it."""
    from patchbench_mitigations.fingerprint import installed_version

    if package not in _versions:
        try:
            _versions[package] = installed_version(package, module)
        except Exception:  # of a module without a file
            _versions[package] = "unknown"


def release_of(slug: str, name: str, package: str) -> tuple[str, str]:
    """(met or not_known or not_shown, the record that says so) of a class in the installed release."""
    pack, version = packs()[slug], _versions[package]
    if record := pack["classes"][name]["red"].get(package, {}).get(version):
        return MET, record
    record = pack["measured"].get(package, {}).get(version, "")
    return (NOT_SHOWN, record) if record else (NOT_KNOWN, "")


# ---- where it is looked for ----


def _find(module: ModuleType, path: list[str]) -> tuple[Any, str] | None:
    """Where the object of a dotted name is held: a class's __init__ and a Function's forward instead of itself and of its apply."""
    import torch

    holder: Any = module
    for part in path[:-1]:
        holder = vars(holder).get(part)
        if not isinstance(holder, type):
            return None
    name = path[-1]
    if name == "apply" and isinstance(holder, type) and issubclass(holder, torch.autograd.Function):
        return holder, "forward"
    held = vars(holder).get(name)
    if isinstance(held, type):
        return held, "__init__"
    return (holder, name) if inspect.isfunction(getattr(held, "__func__", held)) else None


def _point_at(holder: Any, name: str, function: str) -> counting.Point:
    """The point at a function, which is replaced by a watched one: under its name, and wherever a module of its package holds it."""
    if (held := _placed.get((id(holder), name))) is not None:
        return held[4]
    import torch

    is_function = isinstance(holder, type) and issubclass(holder, torch.autograd.Function) and name in ("forward", "backward")
    point = counting.Point(function, name if is_function else "")
    original = vars(holder).get(name, getattr(holder, name))
    watched = counting.watching(getattr(original, "__func__", original), point)
    placed = type(original)(watched) if isinstance(original, staticmethod | classmethod) else watched
    _placed[id(holder), name] = (holder, name, original, placed, point)
    setattr(holder, name, placed)
    if isinstance(holder, ModuleType):
        root = holder.__name__.partition(".")[0]
        for module in [one for key, one in list(sys.modules.items()) if key.partition(".")[0] == root]:
            for key in [key for key, value in list(vars(module).items()) if value is original]:
                setattr(module, key, placed)
    if is_function and name == "backward":
        _point_at(holder, "forward", function)  # knows the place
    return point


def _place(module_name: str) -> None:
    """Watches what a module that was just imported has."""
    module = sys.modules[module_name]
    if not isinstance(module, ModuleType):
        return
    for call, rows in calls().items():
        if _module_of(call) != module_name:
            continue
        found = _find(module, call[len(module_name) + 1 :].split("."))
        for slug, name, condition in rows:
            package = _package_of(slug, call)
            _know_version(package, module_name)
            if found is None:
                last = call.rpartition(".")[2]
                if not any(other != call and other.rpartition(".")[2] == last for other in _calls_of(slug, name)):
                    _tried.setdefault((slug, name), f"{call} is not there")
            elif release_of(slug, name, package)[0] != NOT_SHOWN:
                _watch(slug, name, call, condition, *found)


def _watch(slug: str, name: str, call: str, condition: Any, holder: Any, attribute: str) -> None:
    held = _placed.get((id(holder), attribute))
    if held is not None and any(one.key == (slug, name) for one in held[4].watches):
        return
    if held is None and id(getattr(holder, attribute)) in {id(one[3]) for one in _placed.values()}:
        return  # another name of a function that is watched
    original = held[2] if held is not None else getattr(holder, attribute)
    num_hidden = 1 if isinstance(holder, type) else 0
    made = _watch_for(slug, name, call, condition, getattr(original, "__func__", original), num_hidden)
    if isinstance(made, str):
        _tried[slug, name] = made
    else:
        _point_at(holder, attribute, call).watches.append(made)


def start(json_file: str = "", every: int = 100, is_child: bool = False) -> None:
    """Watches every upstream of every pack from now on, in this process. Imports none of them, and no torch."""
    if _options:
        return
    _options.update(json=json_file, every=every, is_child=is_child)
    for name in sorted(set(map(_module_of, calls()))):
        when_imported(name, functools.partial(_place, name))
    when_imported("torch.optim.optimizer", functools.partial(counting.count_steps, every, _every_so_often))
    atexit.register(finish)


def start_in_child() -> None:
    """As the environment says that a parent watches."""
    asked = json.loads(os.environ[ENVIRONMENT])
    start(asked["json"], asked["every"], is_child=True)


def stop() -> None:
    """Puts the originals back, the very objects."""
    for holder, name, original, placed, _ in _placed.values():
        if vars(holder).get(name) is placed:
            setattr(holder, name, original)
        root = getattr(holder, "__name__", "").partition(".")[0]
        for module in [one for key, one in list(sys.modules.items()) if key.partition(".")[0] == root]:
            for key in [key for key, value in list(vars(module).items()) if value is placed]:
                setattr(module, key, original)
    _placed.clear()


# ---- what is told ----


def _row_of(slug: str, name: str, package: str) -> dict[str, Any]:
    """What is known of one class: its state, how many calls met it, and where."""
    made = [call for call in _calls_of(slug, name) if _package_of(slug, call) == package]
    found = [one for holder in _placed.values() for one in holder[4].watches if one.key == (slug, name) and one.function in made]
    known, record = release_of(slug, name, package)
    rows = [row for one in found for row in one.rows if row.total or row.num_traced]
    met = sum(row.total + row.num_traced for row in rows)
    is_part = any(one.is_part for one in found)
    left, why = sum(one.num_left for one in found), next((one.why_left for one in found if one.why_left), "")
    if known == NOT_SHOWN:
        state = NOT_SHOWN
    elif not made:
        state, why = NOT_LOOKED_AT, _why_no_calls(slug, name)
    elif known == NOT_KNOWN:
        state = NOT_KNOWN
    elif not found:
        is_called = (slug, name) in _tried or all(_module_of(call) in sys.modules for call in made)
        state = NOT_LOOKED_AT if is_called else NOT_CALLED
        why = "none of its names is there" if is_called else ""
    else:
        state = (MET_PART if is_part else MET) if met else NOT_MET
    why = _tried.get((slug, name), why) if made else why
    return {"slug": slug, "class": name, "state": state, "package": package, "version": _versions[package], "record": record,
            "met": met, "calls": sum(one.num_calls for one in found), "not_looked_at": left, "why": why, "is_part": is_part,
            "condition": packs()[slug]["classes"][name]["condition"],
            "looked_at": " ".join(dict.fromkeys(one.looked_at for one in found)), "places": _places(rows)}  # fmt: skip


def _places(rows: list[counting.Row]) -> list[dict[str, Any]]:
    """What was counted by line and function; a line may hold several calls."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in rows:
        key = (row.place.file, row.place.line, row.watch.function)
        made = {"file": key[0], "line": key[1], "function": key[2], "calls": 0, "traced": 0, "first_step": row.first_step}
        place = found.setdefault(key, made)
        place["calls"] += row.total
        place["traced"] += row.num_traced
        place["first_step"] = min(place["first_step"], row.first_step)
    return list(found.values())


def _why_no_calls(slug: str, name: str) -> str:
    rules = packs()[slug]["classes"][name]["rules"]
    names = dict.fromkeys(spec["name"] for rule in rules for spec in rule.get("keys", []))
    return f"the condition is a setting ({', '.join(names)})" if names else "no rule says which calls meet it"


def summary() -> dict[str, Any]:
    """{"rank", "steps", "classes": one row each of the packs whose package was imported, "not_imported": the other slugs}."""
    rows, absent = [], []
    for slug, pack in packs().items():
        imported = {package: root for root, package in pack["modules"].items() if root in sys.modules}
        for package, root in imported.items():
            _know_version(package, root)
            rows += [_row_of(slug, name, package) for name in pack["classes"] if _is_told(slug, name, package)]
        absent += [] if imported else [slug]
    return {"rank": ranks.rank(), "steps": counting.num_steps(), "classes": rows, "not_imported": absent}


def _is_told(slug: str, name: str, package: str) -> bool:
    """Whether a class is one of this package: its calls are; where no call is known, a release of it is red."""
    packages = {_package_of(slug, call) for call in _calls_of(slug, name)}
    return package in (packages or packs()[slug]["classes"][name]["red"])


def _sentence(row: dict[str, Any]) -> str:
    what, release = f"{row['slug']}/{row['class']}", f"{row['package']} {row['version']}"
    record = f", record {row['record']}" if row["record"] else ""
    counts = f"{row['met']} of {row['calls']} calls"
    said = {
        MET: f"met the condition of {what}: {counts}; {release}{record}",
        MET_PART: f"met a part of the condition of {what}: {counts}; {release}{record}",
        NOT_MET: f"0 of {row['calls']} calls met the condition of {what}; {release}{record}",
        NOT_SHOWN: f"0 calls met the condition of {what}: no record shows it in {release}{record}",
        NOT_KNOWN: f"not known: {what}: no record speaks for {release}; {counts} would meet {'a part of ' * row['is_part']}the condition",
        NOT_CALLED: f"0 calls met the condition of {what}: its module was not imported; {release}{record}",
        NOT_LOOKED_AT: f"not looked at: {what}: {row['why']}; {release}{record}",
    }[row["state"]]
    if row["not_looked_at"]:
        return f"{said}; not looked at: {row['not_looked_at']} calls ({row['why']})"
    return f"{said}; not looked at: {row['why']}" if row["why"] and row["state"] != NOT_LOOKED_AT else said


def text(shown: dict[str, Any]) -> str:
    """A summary as lines."""
    lines = [f"patchbench watch: {shown['steps']} optimizer steps"]
    order = [MET, MET_PART, NOT_KNOWN, NOT_MET, NOT_CALLED, NOT_LOOKED_AT, NOT_SHOWN]
    for row in sorted(shown["classes"], key=lambda one: order.index(one["state"])):
        lines.append(_sentence(row))
        for place in row["places"]:
            counted = {"calls": "call" if place["calls"] == 1 else "calls", "traced": "traced by torch.compile"}
            counts = [f"{place[key]} {said}" for key, said in counted.items() if place[key]]
            lines.append(f"  {place['file']}:{place['line']}: {', '.join(counts)}, first in step {place['first_step']}")
        if row["places"]:
            lines += [f"  condition: {row['condition']}", f"  looked at: {row['looked_at']}"]
    if shown["not_imported"]:
        lines.append(f"not imported, so nothing was called: the packages of {', '.join(shown['not_imported'])}")
    mark = "" if shown["rank"] is None else f"[rank {shown['rank']}] "
    return "".join(f"{mark}{line}\n" for line in lines)


def _json_file(rank: int | None) -> str:
    stem, suffix = os.path.splitext(_options["json"])
    mark = f".rank{rank}" if rank is not None else f".{os.getpid()}" if _options["is_child"] else ""
    return f"{stem}{mark}{suffix}"


def write() -> None:
    """Writes the summary as JSON where it is asked for, whole at any moment, and the status where that is."""
    if _options["json"]:
        shown = summary()
        file = _json_file(shown["rank"])
        try:
            with open(f"{file}.{os.getpid()}", "w", encoding="utf-8") as unfinished:
                unfinished.write(json.dumps(shown, indent=1) + "\n")
            os.replace(f"{file}.{os.getpid()}", file)
        except OSError as e:
            print(f"patchbench_mitigations: watch: --json {file}: {e.strerror}", file=sys.stderr)
    registry.write_status()


def _every_so_often() -> None:
    counting.refresh()
    write()


def finish() -> None:
    """The last summary. A child in which no upstream was imported has nothing to tell."""
    counting.refresh(is_last=True)
    shown = summary()
    if shown["classes"] or not _options["is_child"]:
        write()
        sys.stderr.write(text(shown))
        sys.stderr.flush()


# ---- the command ----


def begin(words: list[str]) -> list[str] | int:
    """Starts to watch as the words after `watch` say: the program's words, or an exit status where there is nothing to run."""
    if not words or words[0] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    given = {"--json": "", "--every": "100"}
    while words and words[0].startswith("-") and words[0] != "-m":
        option, equals, value = words[0].partition("=")
        if option not in given:
            return _wrong(f"unknown option {option}; it takes --json FILE and --every N before the program")
        words = words[1:] if equals else words[2:] if len(words) > 1 and (value := words[1]) else []
        if not value:
            return _wrong(f"{option} needs a value")
        given[option] = value
    if not words or words == ["-m"]:
        return _wrong("no program: name a SCRIPT, or -m MODULE")
    if not given["--every"].isdecimal() or int(given["--every"]) == 0:
        return _wrong(f"--every {given['--every']}: needs a number of steps from 1 on")
    folder = os.path.dirname(os.path.abspath(given["--json"]))
    if given["--json"] and not os.path.isdir(folder):
        return _wrong(f"--json {given['--json']}: there is no folder {folder}")
    if words[0] != "-m" and not os.path.exists(words[0]):
        return _wrong(f"{words[0]}: there is no such file")
    if os.environ.get("PATCHBENCH_MITIGATE", "").strip() not in ("", "off"):
        return _wrong("PATCHBENCH_MITIGATE is set: what is mitigated is not the release's; unset it to watch the release")
    asked = {"json": given["--json"] and os.path.abspath(given["--json"]), "every": int(given["--every"])}
    os.environ[ENVIRONMENT] = json.dumps(asked)
    start(asked["json"], asked["every"])
    return words


def _wrong(why: str) -> int:
    print(f"patchbench_mitigations: watch: {why}", file=sys.stderr)
    return 2
