#pragma once
#include <string>
#include <string_view>

namespace patchbench::job {

/// The rank that a line names in front ("[rank3]:", "[default3]:", "3: "), "" if none; `rest`
/// receives what follows. Exposed for tests.
std::string_view rank_of_line(std::string_view line, std::string_view* rest);
/// The rank that a path tells (".../3/stderr.log", "rank_3.log"), "-" if none.
std::string rank_of_path(const std::string& path);
/// A warning without what changes from one time to the next: numbers, addresses, times.
std::string shape_of(std::string_view line);
/// torch's own prefix "W1122 01:05:44.525000 20632 file.py:5127]" if the text begins with one,
/// from its level on.
std::string_view log_prefix(std::string_view text);

/// Text of a log for a terminal or a document: no control characters, at most 400 bytes.
std::string clean(std::string_view text);

}  // namespace patchbench::job
