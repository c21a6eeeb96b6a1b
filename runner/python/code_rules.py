# Longer than 600 lines: `python3 -I -S` starts this one file, which imports no other of ours.
"""code_rules.py PATH RULES [FILES]: the places in Python code and configurations below PATH that meet a rule of RULES.

`patchbench scan` starts it as `python3 -I -S`, in Python 3.9 or newer. It parses; nothing of what it reads is imported or run. RULES is
JSON: objects with `slug`, `class`, and either `calls` with `arguments` or `keys`, as packs/manifest.schema.json has them under `trigger`.
Each line printed is one place: {"slug", "class", "file", "line", "state", "text", "upstreams"}. `state` is met, unknown (it cannot be known
there), no_gradient (the rule needs one, and nobody takes it there), or not_met (a rule with `rules_out` holds; `upstreams` are those of the
rule); or it is a comment "# patchbench: ignore": {"ignore", "place"}; or the model that a config.json describes: {"model", "place",
"is_named"}, with the classes of its `architectures`, none where they cannot be known, and whether PATH is that file; or where the text
names another loss than a model class's own: {"other_loss", "place"}.
FILES is a file with the paths that are read, each with a zero after it, within MAX_PARSED; what that leaves out is {"unread": "…"}. The
last line is {"done": N}, the number of files that were read. Exit: 2 and one line on stderr where PATH holds nothing to read.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import io
import json
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_BYTES = 4 << 20
MAX_PARSED = 6 << 20  # of a project's code
MAX_STEPS = 8  # from one name of a name to the next
CONFIGURATIONS = {".yaml", ".yml", ".json", ".toml", ".cfg", ".ini"}
SETTINGS = CONFIGURATIONS | {".sh", ".bash", ".sbatch", ".slurm"}
BLOCK_TEXT = re.compile(r"(?m)[:-]\s*[|>][+\-\d]*\s*(#.*)?$")  # a YAML text of several lines follows
EXPRESSION = re.compile(r"[A-Za-z_]\w*[.\[(]")  # of Python, in a script
IGNORE = re.compile(r"#\s*patchbench:\s*ignore(?![\w-])(.*)")
ANSWER = '"unread_in_baseline":'  # of an answer of scan, such as a baseline
CODE = {".py", ".pyi", ".ipynb"}
GRADIENTS_OFF = {f"torch.{where}{name}" for where in ("", "autograd.", "autograd.grad_mode.") for name in ("no_grad", "inference_mode")}
GRADIENTS_ON = {"enable_grad", "set_grad_enabled", "grad", "grad_and_value", "vjp", "jvp", "jacrev", "hessian"}
OTHER_CONTEXTS = {"autocast", "record_function", "stream", "device", "open"}
SKIPPED = {".git", "__pycache__", "node_modules", "site-packages", "dist-packages"}
ABSENT = {"", "~", "null", "none", "false"}
HUB = "use_kernels"  # an option of transformers
# What may train a model by another loss or another loop than the ones that its class was measured with.
LOSS_WORDS = "compute_loss num_items_in_batch label_smoothing loss_type training_step liger unsloth trl peft deepspeed fsdp".split()
OTHER_LOSS = (  # the first where a text has one of the words in any case
    re.compile(rf"(?i:{'|'.join(LOSS_WORDS)})".replace("trl", r"\btrl\b")),
    re.compile(r"class\s+\w+\s*\([^)]*(?:PreTrainedModel|For[A-Z]\w*|LMHeadModel|Trainer)\b"),
)
MET, NOT_MET, UNKNOWN, NO_GRADIENT = "met", "not_met", "unknown", "no_gradient"
RANK = {MET: 2, UNKNOWN: 1, NO_GRADIENT: 0}
LEAVES = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
BINDERS = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.NamedExpr, ast.arg)
SETTERS = {ast.Call, ast.Dict, ast.Assign, ast.AnnAssign, ast.List, ast.Tuple}  # what Reader.pairs looks at
OPEN = object()  # the value of a setting that is not in the text


class NotConstant(Exception):
    """The value of an expression is not in the text."""


def word_of(call: str) -> str:
    """The part of a dotted name that code has to spell: the class in front of `apply`."""
    parts = call.split(".")
    return parts[-2] if parts[-1] == "apply" else parts[-1]


def number_of(text: str) -> Any:
    """The number that a text of a command line or a configuration writes; another text as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_same(value: Any, other: Any) -> bool:
    """Equal, and True is not 1; "1" of a command line is."""
    if isinstance(value, str) and not isinstance(other, str):
        value = number_of(value)
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def meets(spec: dict[str, Any], value: Any) -> bool:
    """Whether a known value is one that meets."""
    if "unless" in spec:
        return not any(is_same(value, other) for other in spec["unless"])
    return "values" not in spec or any(is_same(value, other) for other in spec["values"])


def settings_in(line: str, name: str) -> Iterator[tuple[str, Any]]:
    """What a line of a configuration or a script sets a key to: the text, and its value, OPEN where that is from elsewhere."""
    if line.lstrip().startswith("#"):
        return
    for spelled in {name, name.replace("_", "-")}:
        if spelled not in line:
            continue
        pattern = rf"(?<![\w-])(?:--)?{re.escape(spelled)}(?![\w-])[\"']?\s*(?:[:=]|\s)\s*[\"']?([^\s\"',#}}\\]*)"
        for text in re.findall(pattern, line):
            is_open = text.startswith(("$", "{", "*", "&")) or text.lower() == "auto" or EXPRESSION.match(text) is not None
            yield text, OPEN if is_open else None if text.lower() in ABSENT else {"true": True}.get(text.lower(), text)


def keyed_in(line: str, name: str, file: Path) -> Iterator[tuple[str, Any]]:
    """As settings_in, of a line that sets the key to one plain value: no list, no reference, no text around it."""
    if line.lstrip().startswith(("#", ";", "//")):
        return
    if file.suffix != ".json":
        line = re.split(r"\s#", line)[0]
    quote = '"' if file.suffix == ".json" else "[\"']?"
    pattern = rf"(?:^|[{{,])\s*{quote}{re.escape(name)}{quote}\s*[:=]\s*[\"']?([\w.+-]+)[\"']?(?=\s*(?:[,}}]|$))"
    for text in re.findall(pattern, line):
        yield from settings_in(f"{name}: {text}", name)


def setting_pattern(name: str) -> re.Pattern[str]:
    """Where Python code, of a notebook too, may set a key: `name=`, `name:` of a statement, or the name as a text, with dashes too."""
    word, spelled = re.escape(name), f"(?:{re.escape(name)}|{re.escape(name.replace('_', '-'))})"
    return re.compile(rf"(?<!\w){word}[\s\\]*=(?!=)|(?m:^|[;:])[\t ]*\"?(?:\w+\.)*{word}\s*:|[\"'](?:--)?{spelled}(?:=[^\"'\n]*)?\\?[\"']")


def loose_patterns(name: str) -> dict[str, re.Pattern[str]]:
    """What a text has wherever setting_pattern holds, by spelling. Each begins with a word, so that the search is much cheaper."""
    return {spelled: re.compile(rf"{re.escape(spelled)}(?:[\s\\]*[=:]|\\?[\"'])") for spelled in (name, name.replace("_", "-"))}


def is_word_in(word: str, text: str) -> bool:
    """Whether a text has a name as a whole word."""
    spelled = re.escape(word)  # in front, so that the search looks for it alone
    return word in text and re.search(rf"{spelled}(?<!\w{spelled})(?!\w)", text) is not None


def is_named(name: str, text: str) -> bool:
    return name in text or ("_" in name and name.replace("_", "-") in text)


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """What ast.walk gives, in its order, without the contexts and the operators."""
    nodes = [tree]
    for node in nodes:  # it grows
        for field in node._fields:
            value = getattr(node, field, None)
            if type(value) is list:
                nodes += [one for one in value if isinstance(one, ast.AST) and not isinstance(one, LEAVES)]
            elif isinstance(value, ast.AST) and not isinstance(value, LEAVES):
                nodes.append(value)
    return nodes


def has_with_it(spec: dict[str, Any], text: str) -> bool:
    """Whether the file sets what the key needs, and nothing that it must not have."""

    def has(other: dict[str, Any]) -> bool:
        if not is_named(other["name"], text):
            return False
        values = [value for line in text.splitlines() for _, value in settings_in(line, other["name"])]
        return any(value is OPEN or meets(other, value) for value in values)

    return ("with" not in spec or has(spec["with"])) and not ("without" in spec and has(spec["without"]))


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of attributes, "" of another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


class Module:
    """One parsed file: what its names mean and which of them are constants."""

    def __init__(self, tree: ast.Module, name: str, is_package: bool) -> None:
        self.nodes, self.name, self.is_package = nodes_of(tree), name, is_package
        self.aliases: dict[str, str] = {}
        self.stars: list[str] = []
        self.constants: dict[str, ast.expr] = {}
        changed: set[str] = set()
        self.rules: dict[str, list[dict[str, Any]]] = {}  # what Reader.called gave of a dotted name
        for node in self.nodes:
            if not isinstance(node, BINDERS):
                continue
            if isinstance(node, ast.Import):
                for one in node.names:
                    self.aliases[one.asname or one.name.split(".")[0]] = one.name if one.asname else one.name.split(".")[0]
            elif isinstance(node, ast.ImportFrom):
                self.read_import(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        changed |= {target.id} & self.constants.keys()
                        self.constants[target.id] = node.value
            elif isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)) and isinstance(node.target, ast.Name):
                changed.add(node.target.id)
            elif isinstance(node, ast.arg):
                changed.add(node.arg)
        for name_ in changed:
            self.constants.pop(name_, None)
        for name_, value in self.constants.items():
            if (path := dotted(value)) and name_ not in self.aliases:
                self.aliases[name_] = path

    def read_import(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self.name.split(".") if self.name else []
            keep = len(parts) - node.level + (1 if self.is_package else 0)
            base = ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])
        for one in node.names:
            if one.name == "*":
                self.stars.append(base)
            else:
                self.aliases[one.asname or one.name] = f"{base}.{one.name}" if base else one.name

    def value(self, node: ast.expr, depth: int = 0) -> list[Any]:
        """Every value that an expression may have. Raises NotConstant."""
        if isinstance(node, ast.Constant):
            return [node.value]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return [-one for one in self.value(node.operand, depth + 1) if isinstance(one, (int, float))] or self.refuse()
        if isinstance(node, ast.IfExp) and depth < 8:
            return self.value(node.body, depth + 1) + self.value(node.orelse, depth + 1)
        if isinstance(node, ast.Name) and node.id in self.constants and depth < 8:
            return self.value(self.constants[node.id], depth + 1)
        raise NotConstant

    @staticmethod
    def refuse() -> list[Any]:
        raise NotConstant

    def outcome(self, spec: dict[str, Any], node: ast.expr) -> str:
        try:
            seen = {meets(spec, value) for value in self.value(node)}
        except NotConstant:
            return UNKNOWN if "values" in spec or "unless" in spec else MET
        return UNKNOWN if len(seen) > 1 else MET if seen == {True} else NOT_MET


class Reader:
    """Holds the rules and what was found."""

    def __init__(self, rules: list[dict[str, Any]], max_parsed: int | None) -> None:
        self.max_parsed, self.num_left_out = max_parsed, 0  # in bytes; files
        self.rules = rules
        self.targets = {call: rule for rule in rules for call in rule["calls"]}
        self.by_call: dict[str, list[dict[str, Any]]] = {}
        for rule in rules:
            for call in rule["calls"]:
                self.by_call.setdefault(call, []).append(rule)
        self.keys = [(rule, spec) for rule in rules for spec in rule["keys"]]
        self.words = {word_of(call) for call in self.targets}
        self.names = {spec["name"] for _, spec in self.keys}
        self.loose = {name: loose_patterns(name) for name in self.names | {HUB}}
        self.set_keys = {spec["name"]: setting_pattern(spec["name"]) for _, spec in self.keys} | {HUB: setting_pattern(HUB)}
        self.hub: list[tuple[str, int]] = []  # where kernels of the Hub are switched on
        self.modules: dict[str, Module] = {}
        self.found: dict[tuple[str, str, str, int, bool], dict[str, Any]] = {}
        self.comments: list[dict[str, str]] = []
        self.models: list[dict[str, Any]] = []
        self.other_loss: dict[str, str] | None = None
        self.count = 0

    # --- what is printed

    @staticmethod
    def shown(file: Path) -> str:
        return str(file).encode(errors="replace").decode(errors="replace")

    def put(self, rule: dict[str, Any], file: Path, line: int, outcome: str, text: str) -> None:
        """A place: of a class what meets, else what cannot be known. A rule that rules out says nothing where it is not known to hold."""
        rules_out = bool(rule["rules_out"])
        if outcome == NOT_MET or (rules_out and outcome != MET):
            return
        key = (rule["slug"], rule["class"], str(file), line, rules_out)
        state = NOT_MET if rules_out else outcome
        if key in self.found and (rules_out or RANK[self.found[key]["state"]] >= RANK[state]):
            return
        text = re.sub(r"[\x00-\x1f\x7f]+", " ", text)
        place = {"slug": rule["slug"], "class": rule["class"], "line": line, "state": state, "text": text}
        self.found[key] = place | {"file": self.shown(file), "upstreams": rule["rules_out"]}

    def put_key(self, rule: dict[str, Any], spec: dict[str, Any], file: Path, line: int, outcome: str, said: str) -> None:
        """`said` of a key that meets; one that is a part of the condition alone leaves it open."""
        if outcome == UNKNOWN:
            said = f"the value of {spec['name']} is not in the text"
        elif outcome == MET and spec.get("is_part"):
            outcome, said = UNKNOWN, said + ", a part of the condition; the rest is not in the text"
        self.put(rule, file, line, outcome, said)

    def leave_open(self, file: Path, text: str, why: str) -> None:
        """A file that cannot be parsed: of each pack whose words it has it cannot be known."""
        for rule in self.rules:
            words = [word_of(call) for call in rule["calls"]] + [spec["name"] for spec in rule["keys"]]
            if any(word in text for word in words):
                self.put(rule, file, 1, UNKNOWN, f"{why}; whether it meets the condition of {rule['slug']} cannot be known")

    # --- names

    def resolved(self, module: Module, path: str) -> Iterator[str]:
        """Every full name that a dotted name of a module may mean."""
        seen: set[str] = set()
        open_ = [(module, path, 0)]
        while open_:
            where, name, depth = open_.pop()
            head, _, rest = name.partition(".")
            tail = f".{rest}" if rest else ""
            candidates = [where.aliases[head] + tail] if head in where.aliases else [name, *(f"{star}.{name}" for star in where.stars)]
            for full in candidates:
                if full in seen or depth > MAX_STEPS:
                    continue
                seen.add(full)
                yield full
                open_ += [(other, inner, depth + 1) for other, inner in [*self.inside(where, full), (where, full)]]

    def inside(self, where: Module, full: str) -> list[tuple[Module, str]]:
        """A name of another module of the code that is read, as that module spells it."""
        parts = full.split(".")
        for length in range(len(parts) - 1, 0, -1):
            other = self.modules.get(".".join(parts[:length]))
            if other is not None and other is not where:
                return [(other, ".".join(parts[length:]))]
        return []

    def called(self, module: Module, node: ast.AST) -> list[dict[str, Any]]:
        """The rules of the callable that an expression names."""
        path = dotted(node)
        if not path:
            return []
        if path not in module.rules:
            module.rules[path] = next((self.by_call[name] for name in self.resolved(module, path) if name in self.by_call), [])
        return module.rules[path]

    # --- calls

    def argument(self, module: Module, spec: dict[str, Any], call: ast.Call, shift: int) -> str:
        given: list[ast.expr] = []
        is_open = False
        for keyword in call.keywords:
            if keyword.arg == spec["name"]:
                given.append(keyword.value)
            elif keyword.arg is None and isinstance(keyword.value, ast.Dict):
                for key, value in zip(keyword.value.keys, keyword.value.values):
                    if isinstance(key, ast.Constant) and key.value == spec["name"]:
                        given.append(value)
                    is_open |= not isinstance(key, ast.Constant)
            elif keyword.arg is None:
                is_open = True
        position = spec.get("position", -1) + shift
        before = call.args[: position + 1] if spec.get("position", -1) >= 0 else []
        if any(isinstance(one, ast.Starred) for one in before):
            is_open = True
        elif spec.get("position", -1) >= 0 and len(call.args) > position:
            given.append(call.args[position])
        if given:
            return module.outcome(spec, given[0])
        if is_open:
            return UNKNOWN
        return MET if "default" in spec and meets(spec, spec["default"]) else NOT_MET

    def turns_off(self, module: Module, node: ast.expr, is_decorator: bool) -> bool:
        """Whether a context or a decorator turns gradients off, whatever happens."""
        if not isinstance(node, ast.Call):
            return is_decorator and any(name in GRADIENTS_OFF for name in self.resolved(module, dotted(node) or "?"))
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_known = any(name in GRADIENTS_OFF for name in self.resolved(module, dotted(node.func) or "?"))
        return is_known and all(isinstance(one, ast.Constant) and one.value is True for one in given)

    def without_gradient(self, module: Module) -> dict[int, int]:
        """The calls whose result has no gradient: the id of the node, and the line that turns gradients off."""

        def region(line: int, body: list[ast.stmt]) -> int:
            called = (node.func for one in body for node in ast.walk(one) if isinstance(node, ast.Call))
            return 0 if any(dotted(one).rpartition(".")[2] in GRADIENTS_ON for one in called) else line

        found: dict[int, int] = {}
        open_: list[tuple[ast.AST, int]] = [(module.nodes[0], 0)]
        while open_:
            node, line = open_.pop()
            inner, body = line, []
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                # It runs where it is called.
                body = node.body
                inner = next((one.lineno for one in node.decorator_list if self.turns_off(module, one, is_decorator=True)), 0)
                inner = region(inner, [*body, *map(ast.Expr, node.decorator_list)]) if inner else 0
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                body = node.body
                for item in node.items:
                    context = item.context_expr
                    name = dotted(context.func).rpartition(".")[2] if isinstance(context, ast.Call) else ""
                    is_off = self.turns_off(module, context, is_decorator=False)
                    inner = region(context.lineno, body) if is_off else inner if name in OTHER_CONTEXTS else 0
            elif isinstance(node, (ast.Lambda, ast.GeneratorExp)):
                line = 0
            elif isinstance(node, ast.Call) and line:
                found[id(node)] = line
            inside = set(map(id, body))
            open_ += [(child, inner if id(child) in inside else line) for child in ast.iter_child_nodes(node)]
        return found

    def read_call(self, module: Module, file: Path, call: ast.Call, rules: list[dict[str, Any]], shift: int, off: int) -> None:
        """`off`: the line that turns gradients off around the call, or 0."""
        for rule in rules:
            seen = {self.argument(module, spec, call, shift) for spec in rule["arguments"]}
            outcome = NOT_MET if NOT_MET in seen else UNKNOWN if UNKNOWN in seen else MET
            name = word_of(rule["calls"][0])
            text = f"{name}(…)" if outcome == MET else f"the arguments of {name} are not in the text"
            if outcome == MET and rule["arguments"]:
                text = f"{name}({', '.join(spec['name'] + '=…' for spec in rule['arguments'])})"
            if off and rule["needs_gradient"] and outcome != NOT_MET:
                outcome, text = NO_GRADIENT, f"{name}(…): no gradient here ({file}:{off})"
            self.put(rule, file, call.lineno, outcome, text)

    def read_references(self, module: Module, file: Path, skipped: set[int]) -> None:
        for node in module.nodes:
            if id(node) in skipped:
                continue
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                for rule in self.called(module, node):
                    self.put(rule, file, node.lineno, UNKNOWN, f"{dotted(node)} is passed on; its arguments cannot be known")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 300:
                for call, rules in self.by_call.items():
                    if node.value in (call, word_of(call)):
                        for rule in rules:
                            self.put(rule, file, node.lineno, UNKNOWN, f'"{node.value}" is looked up by its name; the call cannot be known')

    def read_calls(self, module: Module, file: Path) -> None:
        skipped: set[int] = set()
        off: dict[int, int] | None = None
        for node in module.nodes:
            if isinstance(node, ast.Call):
                shift, function = 0, node.func
                if node.args and any(name == "functools.partial" for name in self.resolved(module, dotted(function) or "?")):
                    shift, function = 1, node.args[0]
                if rules := self.called(module, function):
                    # What calls a partial may give the argument again.
                    rules = [rule for rule in rules if not (shift and rule["rules_out"])]
                    off = self.without_gradient(module) if off is None else off
                    self.read_call(module, file, node, rules, shift, 0 if shift else off.get(id(node), 0))
                    skipped.update(map(id, ast.walk(function)))
            for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                if annotation is not None:
                    skipped.update(map(id, ast.walk(annotation)))
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and dotted(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if all(isinstance(target, ast.Name) and target.id in module.aliases for target in targets):
                    skipped.update(map(id, ast.walk(node.value)))
            # The class in front of `.apply` is part of the call's name.
            if isinstance(node, ast.Attribute) and self.called(module, node):
                skipped.update(map(id, ast.walk(node.value)))
        self.read_references(module, file, skipped)

    # --- keys of configurations

    def pairs(self, node: ast.AST) -> Iterable[tuple[str, ast.expr, int]]:
        """Each (key, value, line) that a node gives."""
        if isinstance(node, ast.Call):
            yield from ((keyword.arg, keyword.value, keyword.value.lineno) for keyword in node.keywords if keyword.arg)
            name = dotted(node.func).rpartition(".")[2]
            if name == "setattr" and len(node.args) == 3 and isinstance(node.args[1], ast.Constant):
                yield str(node.args[1].value), node.args[2], node.lineno
            if name == "add_argument" and node.args and isinstance(node.args[0], ast.Constant):
                # What is given on the command line is not in the text.
                yield str(node.args[0].value).lstrip("-").replace("-", "_"), node.func, node.lineno
        elif isinstance(node, ast.Dict):
            yield from ((str(key.value), value, key.lineno) for key, value in zip(node.keys, node.values)
                        if isinstance(key, ast.Constant))  # fmt: skip
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute):
                    yield target.attr, node.value, node.lineno
                elif isinstance(target, ast.Name):
                    yield target.id, node.value, node.lineno
                elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    yield str(target.slice.value), node.value, node.lineno
        elif isinstance(node, (ast.List, ast.Tuple)):
            for one, after in zip(node.elts, [*node.elts[1:], ast.Constant("")]):
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.startswith("--"):
                    flag, equals, value = one.value.partition("=")
                    yield flag[2:].replace("-", "_"), ast.Constant(value) if equals else after, one.lineno

    def read_keys(self, module: Module, file: Path, source: str) -> None:
        # What a program sets may be a default that something else overrides: it rules nothing out.
        keys = [(rule, spec) for rule, spec in self.keys if not rule["rules_out"] and has_with_it(spec, source)]
        names = {spec["name"] for _, spec in keys}
        for node in module.nodes if keys else ():
            for key, value, line in self.pairs(node) if type(node) in SETTERS else ():
                for rule, spec in keys if key in names else ():
                    if key == spec["name"]:
                        self.put_key(rule, spec, file, line, module.outcome(spec, value), f"{key} is set")

    def read_hub(self, module: Module, file: Path) -> None:
        """Calls, tables and assignments that switch the kernels of the Hub on, or may; an option that a parser declares is none."""
        for node in module.nodes:
            if type(node) not in SETTERS or (isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "add_argument"):
                continue
            for key, value, line in self.pairs(node):
                is_known = isinstance(value, ast.Constant)
                if key == HUB and (bool(value.value) if is_known else not isinstance(node, ast.AnnAssign)):
                    self.hub.append((str(file), line))

    def read_settings(self, text: str, file: Path) -> None:
        names = {name for name in self.names if is_named(name, text)}
        keys = [(rule, spec) for rule, spec in self.keys if spec["name"] in names and has_with_it(spec, text)]
        for number, line in enumerate(text.splitlines() if is_named(HUB, text) else (), 1):
            for said, value in settings_in(line + " ", HUB):
                # An option of a command line has no value.
                if value is not None or (not said and "--" in line):
                    self.hub.append((str(file), number))
        if file.suffix not in CONFIGURATIONS or (file.suffix in (".yaml", ".yml") and BLOCK_TEXT.search(text)):
            keys = [(rule, spec) for rule, spec in keys if not rule["rules_out"]]
        calls = [(call, rules) for call, rules in self.by_call.items() if call in text]
        for number, line in enumerate(text.splitlines() if keys or calls else (), 1):
            for call, rules in calls:
                if call in line:
                    for rule in rules:
                        self.put(rule, file, number, UNKNOWN, f"{call} is named in a configuration; its arguments cannot be known")
            for rule, spec in keys:
                for value_text, value in keyed_in(line, spec["name"], file) if rule["rules_out"] else settings_in(line, spec["name"]):
                    outcome = UNKNOWN if value is OPEN else MET if meets(spec, value) else NOT_MET
                    self.put_key(rule, spec, file, number, outcome, f"{spec['name']} is set to {value_text}")

    # --- models

    def read_model(self, text: str, file: Path, is_named: bool) -> None:
        """A model's configuration has model_type or architectures; custom code (auto_map) may be any class."""
        try:
            config = json.loads(text)
        except (ValueError, RecursionError):
            config = {"architectures": None} if '"architectures"' in text else None
        if not isinstance(config, dict) or not ("architectures" in config or isinstance(config.get("model_type"), str)):
            return
        names = config.get("architectures")
        is_known = isinstance(names, list) and all(isinstance(name, str) and name.isidentifier() for name in names)
        is_known &= '"auto_map"' not in text and text.count('"architectures"') == 1
        line = text[: max(text.find('"architectures"'), 0)].count("\n") + 1
        place = f"{self.shown(file)}:{line}"
        self.models.append({"model": names if is_known else [], "place": place, "is_named": is_named})

    def read_other_loss(self, text: str, file: Path) -> None:
        if self.other_loss is not None:
            return
        folded = text.lower()  # one pass for each word is a tenth of the time of one search that folds each letter
        words, classes = OTHER_LOSS
        match = words.search(text) if any(word in folded for word in LOSS_WORDS) else None
        if match := match or classes.search(text):
            place = f"{self.shown(file)}:{text.count(chr(10), 0, match.start()) + 1}"
            self.other_loss = {"other_loss": " ".join(match[0].split()), "place": place}

    # --- files

    def text_of(self, file: Path) -> str | None:
        try:
            if not file.is_file():
                return None
            with file.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError as error:
            for rule in self.rules:
                self.put(rule, file, 0, UNKNOWN, f"it cannot be read ({error.strerror}); what it calls cannot be known")
            return None
        self.count += 1
        text = re.sub("\r\n?", "\n", data.decode("utf-8", errors="replace"))  # a parser and a tokenizer disagree about "\r" alone
        if len(data) > MAX_BYTES:
            self.leave_open(file, text, "it holds more than 4 MiB")
            return None
        return text

    def parse(self, file: Path, text: str, root: Path) -> Module | None:
        try:
            if file.suffix == ".ipynb":
                cells = json.loads(text)["cells"]
                code = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
                text = "\n".join(re.sub(r"(?m)^\s*[%!?].*$", "pass", one) for one in code)
            self.read_comments(text, file)
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError, KeyError, TypeError) as error:
            self.leave_open(file, text, f"it cannot be parsed ({type(error).__name__})")
            return None
        parts = list((file.relative_to(root) if file != root else Path(file.name)).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        module = Module(tree, ".".join(parts[:-1] if is_package else parts), is_package)
        for start in range(len(parts)):
            name = ".".join((parts[:-1] if is_package else parts)[start:])
            if name:
                self.modules.setdefault(name, module)
        return module

    def read_comments(self, text: str, file: Path) -> None:
        """The comments "# patchbench: ignore"; in code only what is a comment there, not a text."""
        if "patchbench:" not in text or file.suffix == ".json":
            return
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if IGNORE.search(line)]
        if file.suffix in CODE:
            lines = []
            with contextlib.suppress(tokenize.TokenError, SyntaxError):  # what cannot be parsed is unknown as a whole
                tokens = tokenize.generate_tokens(io.StringIO(text).readline)
                lines.extend((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)
        for number, match in ((number, IGNORE.search(line)) for number, line in lines):
            if match:
                said = " ".join(re.sub(r"[\x00-\x1f\x7f]+", " ", match[1]).split())
                self.comments.append({"ignore": said, "place": f"{self.shown(file)}:{number}"})

    def may_meet(self, text: str) -> bool:
        """Whether Python code has a word of a rule where the rule may be met; cheap, before the parser."""
        if any(is_word_in(word, text) for word in self.words):
            return True
        set_keys = {name for name in self.loose if self.is_set(name, text)}
        return HUB in set_keys or any(spec["name"] in set_keys and has_with_it(spec, text) for _, spec in self.keys)

    def is_set(self, name: str, text: str) -> bool:
        """Whether setting_pattern is anywhere in a text: looked for in the lines that have the loose pattern."""
        for word, loose in self.loose[name].items():
            end = 0
            for match in loose.finditer(text) if word in text else ():
                if match.end() <= end:
                    continue
                begin = text.rfind("\n", 0, match.start()) + 1
                end = text.find("\n", match.end()) % (len(text) + 1)
                if self.set_keys[name].search(text[begin:end]):
                    return True
        return False

    def new_names(self, module: Module) -> set[str]:
        """The names that a module gives to callables of a rule, under which others may call them."""
        return {name for name, full in module.aliases.items() if name not in self.words and not self.words.isdisjoint(full.split("."))}

    def read(self, root: Path, files: Iterable[Path]) -> None:
        texts = {file: text for file in files if (text := self.text_of(file)) is not None}
        texts = {file: text for file, text in texts.items() if file.suffix != ".json" or ANSWER not in text}
        code = {file: text for file, text in texts.items() if file.suffix in CODE}
        parsed: dict[Path, Module] = {}
        found = [file for file, text in code.items() if self.may_meet(text)]
        names: set[str] = set()
        num_bytes = 0
        for _ in range(3):
            for file in found:
                text = code.pop(file)
                if self.max_parsed is not None and (num_bytes := num_bytes + len(text)) > self.max_parsed:
                    self.num_left_out += 1
                elif (module := self.parse(file, text, root)) is not None:
                    parsed[file] = module
            names |= {name for file in found if file in parsed for name in self.new_names(parsed[file])}
            found = [file for file, text in code.items() if any(is_word_in(name, text) for name in names)]
        for file, module in parsed.items():
            try:
                if any(is_word_in(word, texts[file]) for word in self.words | names):
                    self.read_calls(module, file)
                if self.keys:
                    self.read_keys(module, file, texts[file])
                if is_named(HUB, texts[file]):
                    self.read_hub(module, file)
            except RecursionError:
                self.leave_open(file, texts[file], "it is nested too deeply")
        for file, text in texts.items():
            if file.suffix in SETTINGS:
                self.read_comments(text, file)
                self.read_settings(text, file)
            if file.name == "config.json":
                self.read_model(text, file, file == root)
            self.read_other_loss(text, file)


def files_below(root: Path) -> Iterator[Path]:
    """What is read, in the order of paths; environments and repositories' own folders are left out."""
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not (Path(folder) / f / "pyvenv.cfg").exists())
        for name in sorted(names):
            if Path(name).suffix in CODE | SETTINGS:
                yield Path(folder) / name


def main() -> int:
    root, rules = Path(sys.argv[1]), json.loads(sys.argv[2])
    is_project = len(sys.argv) > 3
    if root.is_file() and root.suffix not in CODE | SETTINGS:
        known = " ".join(sorted(CODE | SETTINGS))
        print(f"{root}: is not read as code ({known} are); a list of packages is named without --code, before it", file=sys.stderr)
        return 2
    files = map(Path, filter(None, Path(sys.argv[3]).read_text(errors="surrogateescape").split("\0"))) if is_project else files_below(root)
    gc.disable()  # trees of code have no cycles, and looking for them takes a third of the time
    reader = Reader(rules, MAX_PARSED if is_project else None)
    reader.read(root, files)
    if reader.count == 0 and not is_project:
        print(f"{root}: holds no Python file and no configuration; name a folder of code", file=sys.stderr)
        return 2
    for place in sorted(reader.found.values(), key=lambda one: (one["file"], one["line"], one["slug"])):
        print(json.dumps(place))
    if reader.hub:
        (first, line), others = min(reader.hub), len(reader.hub) - 1
        said = f"{HUB} takes kernels of the Hub, which are not read; one may be Liger's" + (
            f" (and in {others} more places)" * bool(others)
        )
        print(json.dumps({"unread": f"{first}:{line}: {said}".encode(errors="replace").decode()}))
    if reader.num_left_out:
        said = f"{reader.num_left_out} Python files behind the first {MAX_PARSED >> 20} MiB that name a pack's words; --code reads them all"
        print(json.dumps({"unread": f"{root}: {said}"}))
    for row in reader.comments + reader.models + ([reader.other_loss] if reader.other_loss else []):
        print(json.dumps(row))
    print(json.dumps({"done": reader.count}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
