#include "run/not_run.h"

#include <fmt/format.h>

#include "report/table.h"

namespace patchbench {

NotRun not_run(const std::string& what, const Error& error) {
  const std::string why = error.what(), unreachable = "upstream_unreachable";
  if (why.find(unreachable) == std::string::npos) return {what, "not_runnable_here", why};
  const bool is_lead = why.starts_with(unreachable + ": ");
  return {what, unreachable, is_lead ? why.substr(unreachable.size() + 2) : why};
}

Json not_run_json(const std::vector<NotRun>& parts) {
  Json list = Json::array();
  for (const NotRun& part : parts)
    list.push_back(
        {{"what", part.what}, {"sentinel", "NOT_RUN:" + part.reason}, {"why", part.why}});
  return list;
}

std::string not_run_text(const std::vector<NotRun>& parts) {
  if (parts.empty()) return "";
  std::string text = fmt::format("\nnot run: {}\n", parts.size());
  for (const NotRun& part : parts)
    text += report::paragraph("  ",
                              fmt::format("{}: NOT_RUN:{}: {}", part.what, part.reason, part.why));
  return text;
}

}  // namespace patchbench
