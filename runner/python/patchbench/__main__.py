"""`python -m patchbench`: the program of this package."""

import os
import sys

from patchbench.program import PatchbenchError, program

if __name__ == "__main__":
    try:
        path = str(program())
    except PatchbenchError as e:
        sys.exit(f"patchbench: {e}")
    os.execv(path, [path, *sys.argv[1:]])
