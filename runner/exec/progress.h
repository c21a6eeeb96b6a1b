#pragma once
#include <string>

namespace patchbench::exec {

/// A line of progress on stderr. On a terminal it is one line that is rewritten in place, with the
/// seconds since it came, and goes when something else is printed; elsewhere a line each.
void progress(const std::string& text);

/// The same for news that would fill a log: on a terminal alone.
void progress_on_terminal(const std::string& text);

/// One of several steps: `progress`, and on a terminal what leads the line while it lives. Steps do
/// not nest.
class Step {
 public:
  explicit Step(const std::string& text);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
};

}  // namespace patchbench::exec
