"""Runtime fixes for bugs of GPU training kernels. Importing this changes nothing; `patchbench_mitigations.auto` acts."""

from patchbench_mitigations.registry import Refused, prometheus, status, write_status

__all__ = ["Refused", "prometheus", "status", "write_status"]
