"""Put before PYTHONPATH by `python -m patchbench_mitigations`: what the launched program starts is mitigated too."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _here]

# The sitecustomize that this one hides.
_spec = PathFinder.find_spec("sitecustomize", sys.path)
if _spec is not None:
    _module = module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)

try:
    import patchbench_mitigations.auto  # noqa: F401
except ImportError as e:
    print(f"patchbench_mitigations: {sys.executable} cannot import it ({e}): nothing is mitigated there", file=sys.stderr)
except ValueError as e:
    # site.py would print this and go on without the mitigations.
    print(e, file=sys.stderr, flush=True)
    os._exit(2)
