#pragma once
#include <string>

#include "workbench/context.h"

namespace patchbench {

/// `status cases SLUG`: what each measured version showed on each case, from the newest
/// observations of the ledger and the committed evidence; one table per upstream and device.
void show_case_matrix(const Context& context, const std::string& slug);

}  // namespace patchbench
