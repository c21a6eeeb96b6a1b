"""Runtime fixes for bugs of GPU training kernels. Importing this changes nothing; `patchbench_mitigations.auto` acts."""
