"""Does what PATCHBENCH_MITIGATE says, when imported: `import patchbench_mitigations.auto`, once, anywhere."""

import os

from patchbench_mitigations import registry

registry.apply(os.environ.get("PATCHBENCH_MITIGATE", ""))
