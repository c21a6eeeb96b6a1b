#pragma once
#include "harness/pack.h"

namespace patchbench::harness {

/// A reproducer's whole program: parses the words, makes the inputs, runs or starts the subject,
/// judges, writes one observation per case and repeat. Returns 0 if every chosen case was observed,
/// whatever was seen; 2 for wrong words; 4 if this machine lacks the device; 3 if something of ours
/// failed. Errors are one line on stderr.
int run_reproducer(int argc, const char* const* argv, const Pack& pack);

}  // namespace patchbench::harness
