#pragma once
#include <map>
#include <string>
#include <vector>

#include "report/page.h"
#include "status/verdict_index.h"

namespace patchbench {

/// The page's facts about every pack of an index.
report::Page page_of(const Context& context, const VerdictIndex& verdicts, const std::string& date);

}  // namespace patchbench
