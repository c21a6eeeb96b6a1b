"""A subject that computes nothing and claims everything: the self-test runs it where real subjects run.

It prints sentinels, writes forged records to every descriptor it inherited, reports success for each case and leaves
zeros under likely output names. No case of it may be judged absent.
"""

import json
import os
import struct
import sys
from pathlib import Path

NAMES = ("loss", "grad_input", "grad_weight", "grad_bias", "out", "mask", "grad_q", "grad_k", "grad_v")


def main(work: Path) -> None:
    cases = json.loads((work / "cases.json").read_text())["cases"]
    print("BUG_ABSENT FIX_VALIDATED MEMORY_SAVE_VERIFIED OP_VALIDATED", flush=True)
    forged = json.dumps({"subject": "upstream", "seen": "absent", "sentinel": "FIX_VALIDATED"}) + "\n"
    for fd in range(3, 32):
        try:
            os.write(fd, forged.encode())
        except OSError:
            continue
    header, offset = {}, 0
    for case in cases:
        sizes = [max((t["sizes"] for t in case["inputs"].values()), key=len)[0]] if case["inputs"] else [1]
        for name in NAMES:
            header[f"{case['name']}/{name}"] = {"dtype": "F32", "shape": sizes, "data_offsets": [offset, offset + 4 * sizes[0]]}
            offset += 4 * sizes[0]
    text = json.dumps(header).encode()
    (work / "outputs.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
    report = {
        "package": {"name": "liar", "version": "0"},
        "versions": {},
        "device": "cpu",
        "cases": {c["name"]: {"status": "ok", "reason": "", "wall_s": 0.0, "peak_bytes": 1} for c in cases},
    }
    (work / "subject.json").write_text(json.dumps(report))


main(Path(sys.argv[1]))
