"""Does what PATCHBENCH_MITIGATE says, when imported: `import patchbench_mitigations.auto`, once, anywhere. Watches where a parent does."""

import os

from patchbench_mitigations import registry

registry.apply(os.environ.get("PATCHBENCH_MITIGATE", ""))
if "PATCHBENCH_WATCH" in os.environ:
    from patchbench_mitigations import watch

    watch.start_in_child()
