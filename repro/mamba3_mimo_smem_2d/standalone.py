"""Whether mamba-ssm's Mamba-3 MIMO backward kernel lowers with TMA on, and loads through it.

Needs: mamba-ssm, the tilelang it pins (0.1.8) and torch; no GPU: it is lowered to CUDA source for sm_90a, which takes
a minute. Exit: 0 it does, 1 not, 2 cannot say.
"""

import sys

try:
    import tilelang
    from mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd import mamba_mimo_bwd_fwd as factory
    from tilelang import PassConfigKey, tvm
except ImportError as error:
    print(f"cannot say: {error}; pip install mamba-ssm==2.3.2.post1 tilelang==0.1.8", file=sys.stderr)
    sys.exit(2)


def source(is_tma: bool) -> str:
    """The kernel's CUDA source, with the two switches that keep TMA out of it on or off."""
    shape = {"B": 1, "S": 256, "H": 16, "G": 2, "N": 128, "P": 64, "R": 4, "chunk_size": 16, "rotary_dim_divisor": 2}
    kernel = factory.get_tir(**shape, hasZ=False, hasD=False, reduceO=True, dtype="bfloat16", num_stages=0)
    keys = (PassConfigKey.TL_DISABLE_TMA_LOWER, PassConfigKey.TL_DISABLE_WARP_SPECIALIZED)
    config = dict(factory.pass_configs) | dict.fromkeys(keys, not is_tma)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        return tilelang.lower(kernel, target=target, enable_device_compile=False).kernel_source


try:
    text = source(is_tma=True)
except Exception as error:
    source(is_tma=False)  # raises if TMA is not the cause
    print(f"WRONG: with TMA on it does not lower: {type(error).__name__}: {str(error).strip().splitlines()[-1]}")
    sys.exit(1)
count = text.count("tma_load(")
print(f"{'right' if count else 'WRONG'}: it lowers, with {count} loads through TMA (tilelang {tilelang.__version__})")
sys.exit(count == 0)
