#pragma once
#include <map>
#include <string>
#include <vector>

#include "report/page.h"
#include "status/pack_records.h"

namespace patchbench {

/// The page's facts about every pack of an index.
report::Page page_of(const Context& context, const PackRecords& verdicts, const std::string& date);

}  // namespace patchbench
