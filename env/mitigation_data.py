#!/usr/bin/env python3
"""Writes mitigations/patchbench_mitigations/data/<slug>.json, what reports/evidence supports of each release, data/watch/<slug>.json, what
`watch` looks for, and the table of mitigations/README.md that says where each mitigation was verified.

  mitigation_data.py           write every file
  mitigation_data.py --check   write nothing; exit 1 and name the files that are not what the evidence supports

Of each release that a verdict is about: what upstream showed ("absent" or a failure class), the record of its verified
mitigation, and the digests of the functions that the mitigation changes, read from the very archive that was measured
(fetch.py's cache, by its sha256). Evidence on a commit, and what was not isolated, grants nothing. For `watch`, of each class the
condition and the rules of the manifest, and the releases whose newest verdict on a device shows it, each with that record.
"""

from __future__ import annotations

import ast
import datetime
import functools
import hashlib
import importlib.util
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mitigations" / "patchbench_mitigations"
README = ROOT / "mitigations" / "README.md"
BEGIN, END = "<!-- verified -->\n", "<!-- /verified -->\n"


def module_from(path: Path) -> ModuleType:
    """A Python file of this repository that needs nothing but the standard library."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(PACKAGE.parent))
FINGERPRINT = module_from(PACKAGE / "fingerprint.py")
FETCH = module_from(ROOT / "env" / "fetch.py")
RECORDS = module_from(ROOT / "env" / "records.py")


def constants_of(path: Path) -> dict[str, Any]:
    """The constants that a mitigation's module assigns from constants alone, megatron.py's included."""
    known: dict[str, Any] = {"MODE_AUTO": "auto"}
    for file in (PACKAGE / "megatron.py", path):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    value = eval(compile(ast.Expression(node.value), str(file), "eval"), {"tuple": tuple, **known})
                except NameError:
                    continue
                known[node.targets[0].id] = value
    return known


@functools.cache
def records(slug: str) -> dict[str, dict[str, Any]]:
    """Every record of a pack's evidence, by its digest."""
    files = sorted((ROOT / "reports" / "evidence" / slug).glob("*.jsonl"))
    return {hashlib.sha256(line.encode()).hexdigest(): json.loads(line) for file in files for line in RECORDS.records_of(file)}


@functools.cache
def verdicts(slug: str) -> list[dict[str, Any]]:
    """The isolated verdicts about releases, newest last; each with its digest. One that is dated after today never counts."""
    found, now = [], datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for digest, record in records(slug).items():
        context = record["predicate"].get("context", {})
        pin = context.get("pin", {})
        is_release = "sha256" in pin and not context.get("edits") and context["sandbox"].get("isolated")
        if record["predicateType"].split(":")[2] == "verdict" and is_release and context["started"] <= now:
            found.append({**record["predicate"], "digest": digest})
    return sorted(found, key=lambda verdict: verdict["context"]["started"])


def sources(archive: Path, prefix: str) -> dict[str, str]:
    """Every Python file of a wheel or sdist, by its path below the package root."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as z:
            return {name: z.read(name).decode(errors="replace") for name in z.namelist() if name.endswith(".py")}
    with tarfile.open(archive) as t:
        files = [m for m in t.getmembers() if m.isfile() and m.name.startswith(prefix) and m.name.endswith(".py")]
        return {m.name[len(prefix) :]: t.extractfile(m).read().decode(errors="replace") for m in files}


def function_digests(files: dict[str, str], keys: list[str]) -> dict[str, str]:
    """The digest of each "module:name" or "module:Class.name" that the files define."""
    found = {}
    for key in keys:
        module, _, path = key.partition(":")
        stem = module.replace(".", "/")
        text = files.get(f"{stem}.py", files.get(f"{stem}/__init__.py", ""))
        node: Any = ast.parse(text)
        for name in path.split("."):
            inner = [n for n in getattr(node, "body", []) if getattr(n, "name", None) == name]
            node = inner[-1] if inner else None
        if node is not None:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = text.splitlines()[first - 1 : node.end_lineno]
            found[key] = FINGERPRINT.digest_of_source("\n".join(lines))
    return found


def releases(slug: str, upstream: dict[str, Any], name: str, keys: list[str]) -> dict[str, Any]:
    """By version, in the order of env/pins.json, what the evidence says of the releases of one upstream."""
    found: dict[str, Any] = {}
    shas = {release["version"]: release["sha256"] for release in upstream["releases"]}
    for verdict in verdicts(slug):
        pin, sentinel = verdict["context"]["pin"], verdict["sentinel"]
        version, question = pin["version"], verdict["question"]
        if pin["upstream"] != name or shas.get(version) != pin["sha256"]:
            continue
        one = found.setdefault(version, {})
        if question["question"] == "reproduce" and question["subject"] == "upstream":
            no_answer = "unsupported" if " is unsupported: " in verdict["why"] else "unresolved"
            seen = {"BUG_ABSENT": "absent"}.get(sentinel) or sentinel.partition("(")[2].rstrip(")") or no_answer
            # What one machine shows, another's not showing it does not take back.
            if one.get("seen", "unresolved") in ("absent", "unsupported", "unresolved"):
                one["seen"] = seen
        if sentinel == "MITIGATION_VERIFIED":
            one |= {"mitigated": verdict["digest"], "prefix": pin.get("prefix", "")}
    for release in upstream["releases"]:
        one = found.get(release["version"], {})
        if "mitigated" in one:
            archive = FETCH.fetch_file(upstream["project"], release["file"], release["sha256"])
            one["functions"] = function_digests(sources(archive, one.pop("prefix")), keys)
    return {release["version"]: found[release["version"]] for release in upstream["releases"] if release["version"] in found}


def data_of(slug: str) -> dict[str, Any] | None:
    """The file's content; None for a pack that has no mitigation and needs one."""
    manifest = json.loads((ROOT / "packs" / slug / "manifest.json").read_text())
    pins = json.loads((ROOT / "env" / "pins.json").read_text())["upstreams"]
    source = PACKAGE / f"{slug}.py"
    if source.exists():
        known = constants_of(source)
        name, keys = known["UPSTREAM"], list(known["KEYS"])
        head = {"target": known["TARGET"], "modes": [known["MODE_AUTO"], *manifest["mitigation"]["modes"]]}
    elif "not_needed" in manifest["mitigation"]:
        name, keys, head = manifest["upstreams"][0]["name"], [], {"not_needed": manifest["mitigation"]["not_needed"]}
    else:
        return None
    return {"slug": slug, "package": name, **head, "releases": releases(slug, pins[name], name, keys)}


def shown_classes(slug: str, verdict: dict[str, Any], classes: list[str]) -> set[str]:
    """The failure classes that a verdict names or that its counted cases showed."""
    found = {verdict["sentinel"].partition("(")[2].rstrip(")")}
    for digest in verdict["observations"]:
        one = records(slug).get(digest, {}).get("predicate", {}).get("observation", {})
        if one.get("subject") == "upstream" and one.get("seen") == "present" and one.get("role") not in ("survey", "code"):
            found.add(one["class"])
    return found & set(classes)


def watch_of(slug: str) -> dict[str, Any]:
    """What `watch` knows of a pack: by package the measured releases, and by class its condition, its rules and its red releases, each
    with the first digits of a record."""
    manifest = json.loads((ROOT / "packs" / slug / "manifest.json").read_text())
    pins = json.loads((ROOT / "env" / "pins.json").read_text())["upstreams"]
    names = [one["name"] for one in manifest["classes"]]
    modules, measured = {}, {}
    red: dict[str, dict[str, dict[str, str]]] = {name: {} for name in names}
    for upstream in manifest["upstreams"]:
        known = [] if upstream.get("from_environment") else pins[upstream["name"]]["releases"]
        if not known:  # what has no release has no version to tell it by
            continue
        package, name = pins[upstream["name"]]["project"], upstream["name"]
        modules.update({file.partition("/")[0]: package for file in upstream["files"]})
        newest = {}
        for verdict in verdicts(slug):
            pin, question = verdict["context"]["pin"], verdict["question"]
            is_asked = question["question"] == "reproduce" and question["subject"] == "upstream" and pin["upstream"] == name
            if is_asked and verdict["sentinel"].partition("(")[0] in ("BUG_REPRODUCED", "BUG_ABSENT"):
                newest[pin["version"], verdict["context"]["machine"]["device"]] = verdict
        for version in [release["version"] for release in known]:
            for (found, _), verdict in newest.items():
                if found == version:
                    measured.setdefault(package, {})[version] = verdict["digest"][:12]
                    for one in shown_classes(slug, verdict, names):
                        red[one].setdefault(package, {})[version] = verdict["digest"][:12]
    triggers = {name: [one for one in manifest.get("trigger", []) if one["class"] == name] for name in names}
    rows = {}
    for name in names:
        rules = [rule for one in triggers[name] for rule in one.get("code", []) if "rules_out" not in rule]
        words = list(dict.fromkeys(one["words"] for one in triggers[name]))
        rows[name] = {"condition": " ".join(words), "rules": rules, "red": red[name]}
    return {"slug": slug, "modules": modules, "measured": measured, "classes": rows}


def ranges(versions: set[str], known: list[str]) -> str:
    """ "0.3.0 to 0.8.1, 0.8.4": versions as runs of neighbours among the known ones, which are in order."""
    runs: list[list[str]] = []
    for i, version in enumerate(known):
        if version not in versions:
            continue
        if runs and i > 0 and runs[-1][-1] == known[i - 1]:
            runs[-1].append(version)
        else:
            runs.append([version])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def verified_table() -> str:
    """By mitigation and device, the releases on which a committed record verified it, with the newest such record."""
    pins = json.loads((ROOT / "env" / "pins.json").read_text())["upstreams"]
    rows = ["| slug | device | releases | newest record |", "|---|---|---|---|"]
    for source in sorted(PACKAGE.glob("*.py")):
        if not (ROOT / "packs" / source.stem / "manifest.json").exists():
            continue
        name = constants_of(source)["UPSTREAM"]
        known = [release["version"] for release in pins[name]["releases"]]
        by_device: dict[str, list[dict[str, Any]]] = {}
        for verdict in verdicts(source.stem):
            if verdict["sentinel"] == "MITIGATION_VERIFIED" and verdict["context"]["pin"]["upstream"] == name:
                by_device.setdefault(verdict["context"]["machine"]["device"], []).append(verdict)
        for device, found in sorted(by_device.items()):
            versions = ranges({verdict["context"]["pin"]["version"] for verdict in found}, known)
            parts = found[-1]["why"].split("; ")
            left = next((part for part in parts if part.startswith("left: ")), "")
            cases = "; ".join(part for part in parts if not part.startswith(("left: ", "program ")))
            cases += (f", {left.count(',') + 1} left" if left else "") + ("; program" if "program" in found[-1]["question"] else "")
            rows.append(f"| `{source.stem}` | {device} | {name} {versions} | `{found[-1]['digest'][:12]}`: {cases} |")
    return "\n".join(rows) + "\n"


def readme() -> str:
    """mitigations/README.md with the table as the evidence has it."""
    head, _, rest = README.read_text().partition(BEGIN)
    return head + BEGIN + verified_table() + END + rest.partition(END)[2]


def main(words: list[str]) -> int:
    """See the module's text."""
    is_check, stale = words == ["--check"], []
    if words and not is_check:
        print("mitigation_data.py: takes --check or nothing", file=sys.stderr)
        return 2
    slugs = [path.parent.name for path in sorted((ROOT / "packs").glob("*/manifest.json"))]
    made = {f"{slug}.json": data_of(slug) for slug in slugs} | {f"watch/{slug}.json": watch_of(slug) for slug in slugs}
    for name, data in made.items():
        file, text = PACKAGE / "data" / name, json.dumps(data, indent=1) + "\n" if data else None
        if text != (file.read_text() if file.exists() else None):
            stale.append(name)
            if text and not is_check:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
    for name in stale if is_check else ():
        print(f"mitigations/patchbench_mitigations/data/{name} is not what the evidence supports; run env/mitigation_data.py")
    is_readme_stale = readme() != README.read_text()
    if is_readme_stale and is_check:
        print("mitigations/README.md does not show what the evidence supports; run env/mitigation_data.py")
    elif is_readme_stale:
        README.write_text(readme())
    return 1 if is_check and (stale or is_readme_stale) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
