#pragma once
#include <map>
#include <string>

namespace patchbench::report {

/// A zip archive of files by name, stored as they are: the same files make the same bytes. Its
/// times are the first that the format has, 1980-01-01. Error(kInternal) beyond what the 32 bits
/// of the format hold.
std::string zip_of(const std::map<std::string, std::string>& files);

}  // namespace patchbench::report
