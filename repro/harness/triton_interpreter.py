"""Keeps what Triton's interpreter (TRITON_INTERPRET=1) would compute again for each value.

An interpreted kernel makes a block_type and several tuples for each value. `keep_types` keeps the block types by element type and shape,
and computes the type of a tuple when it is asked for. Values do not change: a loop of loads, products and stores took 0.20 s for 0.33 s
(Triton 3.6.0, one core).
"""

import sys
from typing import Any


def keep_types() -> None:
    """Once Triton's interpreter is imported, for the whole process; nothing where this Triton has other classes, or was kept before."""
    core = sys.modules.get("triton.language.core")
    needed = ("tuple", "tuple_type", "block_type", "_type_for_tuple_values")
    if "triton.runtime.interpreter" not in sys.modules or not all(hasattr(core, name) for name in needed):
        return
    if hasattr(core.block_type, "kept"):
        return
    kept: dict[tuple, dict[str, Any]] = {}
    core.block_type.kept = kept
    make_block_type, get_of_tuple = core.block_type.__init__, core.tuple.__getattr__

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        if type(element_ty) is not core.dtype or not all(type(extent) is int for extent in shape):
            make_block_type(self, element_ty, shape)
            return
        key = (element_ty.name, *shape)
        if key not in kept:
            make_block_type(self, element_ty, shape)
            kept[key] = dict(vars(self))
        vars(self).update(kept[key])

    def init_tuple(self: Any, args: Any, type: Any = None) -> None:  # noqa: A002  Triton's name
        self.values = list(args)
        if type is not None:
            self.type = type if isinstance(type, core.tuple_type) else core.tuple_type(type)

    def get(self: Any, name: str) -> Any:
        if name != "type":
            return get_of_tuple(self, name)
        self.type = core._type_for_tuple_values(self.values)
        return self.type

    core.block_type.__init__, core.tuple.__init__, core.tuple.__getattr__ = init_block_type, init_tuple, get
