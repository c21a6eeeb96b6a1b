#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/package_list.h"

namespace patchbench {

/// What a pip requirements file names, with the files that it includes and the constraints that it
/// takes: a pin of a constraint is an entry, too. Lines end where pip and uv end them. A line that
/// is not understood from one end to the other is unread. Error(kUsage) `<file>:<line>: <reason>`
/// where more lines are unread than understood, for an encoding that is not a superset of ASCII,
/// and for more than 100 included files.
PackageList required_packages(std::string_view text, const std::string& file,
                              const ReadIncluded& read_included);

/// A requirement, or options of pip, at its line of a file of another kind.
struct RequirementLine {
  std::string text;
  int line = 0;
};
/// What such lines name. A line that is not understood is unread, as is an included file that
/// cannot be read.
PackageList required_packages(const std::vector<RequirementLine>& lines, const std::string& file,
                              const ReadIncluded& read_included);

}  // namespace patchbench
