"""Runs a program with the mitigations that PATCHBENCH_MITIGATE names.

  python -m patchbench_mitigations SCRIPT ARGS…
  python -m patchbench_mitigations -m MODULE ARGS…
  torchrun --nproc-per-node 8 -m patchbench_mitigations SCRIPT ARGS…
  python -m patchbench_mitigations watch SCRIPT ARGS…      changes nothing: counts the calls that meet a known bug (watch --help)

In the program itself and in every Python that it starts, however: torchrun's workers, spawned and forked children.
Exit: the program's; 2 for an unknown mitigation, mode or option.
"""

from __future__ import annotations

import os
import runpy
import sys

from patchbench_mitigations import registry

START = os.path.join(registry.HERE, "start")


def main(words: list[str]) -> int:
    """See the module's text."""
    if not words or words[0] in ("-h", "--help") or words == ["-m"]:
        print(__doc__.strip(), file=sys.stdout if words and words != ["-m"] else sys.stderr)
        return 0 if words and words != ["-m"] else 2
    value = os.environ.get("PATCHBENCH_MITIGATE", "")
    if words[0] == "watch":
        from patchbench_mitigations import watch

        left = watch.begin(words[1:])
        if isinstance(left, int):
            return left
        words = left
    elif not value.strip():
        print("patchbench_mitigations: PATCHBENCH_MITIGATE is not set: nothing is switched on", file=sys.stderr)
    elif sys.flags.ignore_environment or sys.flags.no_site:
        print("patchbench_mitigations: with -E, -I or -S the program's children are not mitigated", file=sys.stderr)
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != START]
    os.environ["PYTHONPATH"] = os.pathsep.join([START, *inherited])
    try:
        registry.apply(value)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 2
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(words[0]))
        runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
