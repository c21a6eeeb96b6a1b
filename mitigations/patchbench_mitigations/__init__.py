"""Runtime fixes for bugs of GPU training kernels. Importing this changes nothing; `patchbench_mitigations.auto` acts."""

from patchbench_mitigations.after_import import Refused
from patchbench_mitigations.registry import prometheus, status, write_status

__all__ = ["Refused", "prometheus", "status", "write_status"]
