#pragma once
#include <string>

#include "core/record.h"

namespace patchbench::report {

/// A record in a few words.
struct RecordLine {
  std::string about;  ///< "upstream none_random", "validate 0.8.0", "reproduce 0.8.0 upstream"
  std::string says;   ///< "present wrong_gradients", "FIX_VALIDATED unisolated"
};
RecordLine record_line(const Record& record);

}  // namespace patchbench::report
