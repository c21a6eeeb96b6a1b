"""The release's TileLang kernels are run as they are written, on the CPU (tile_interpreter.py)."""

from tile_interpreter import install, modules

__all__ = ["install", "modules"]
