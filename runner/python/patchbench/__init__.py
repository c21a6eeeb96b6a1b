"""Upstream bugs of GPU training: which releases are hit, by which records, and what the fix is.

Every answer comes from the program `patchbench`, which this package brings; nothing here imports torch.
"""

from patchbench.claims import ClaimProblem, lint_claims
from patchbench.edit import Edit, FileEdit
from patchbench.environment_scan import Answer, Scan, State, scan
from patchbench.ledger import Ledger, LedgerReport, RecordLine
from patchbench.program import IntegrityError, InternalError, NotRunnableError, PatchbenchError, UnresolvedError, UsageError
from patchbench.status import Interval, Pack, Release, Upstream, Verdict, Window, packs, verdicts, windows

__all__ = [
    "Answer",
    "ClaimProblem",
    "Edit",
    "FileEdit",
    "IntegrityError",
    "InternalError",
    "Interval",
    "Ledger",
    "LedgerReport",
    "NotRunnableError",
    "Pack",
    "PatchbenchError",
    "RecordLine",
    "Release",
    "Scan",
    "State",
    "UnresolvedError",
    "Upstream",
    "UsageError",
    "Verdict",
    "Window",
    "lint_claims",
    "packs",
    "scan",
    "verdicts",
    "windows",
]
