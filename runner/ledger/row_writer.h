#pragma once
#include <string>
#include <vector>

namespace patchbench::ledger {

/// Writes rows (RFC 8785 texts, no line feeds) in format 3 (row_reader.h), each with a line feed at
/// its end. The same rows give the same text.
std::string pack_rows(const std::vector<std::string>& rows);

}  // namespace patchbench::ledger
