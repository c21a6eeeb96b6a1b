"""Prints, as JSON, what the torch of this interpreter has for each config line named in argv ("absent" where none)."""

import importlib
import json
import sys


def value_of(line: str) -> object:
    """The value of `module.attribute`, "absent" if that torch has no such line."""
    module, _, attribute = line.rpartition(".")
    try:
        value = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return "absent"
    return value if isinstance(value, bool | int | float | str) else repr(value)


print(json.dumps({line: value_of(line) for line in sys.argv[1:]}))
