#include "run/not_run.h"

#include <fmt/format.h>

#include "report/table.h"

namespace patchbench {

std::string reason_name(NotRunReason reason) {
  return reason == NotRunReason::kUpstreamUnreachable ? "upstream_unreachable"
                                                      : "not_runnable_here";
}

NotRun not_run(const std::string& what, const Error& error) {
  std::string why = error.what();
  if (!error.is_unreachable()) return {what, NotRunReason::kNotRunnableHere, why};
  // The reason is said before it: not twice.
  const std::string lead = reason_name(NotRunReason::kUpstreamUnreachable) + ": ";
  if (why.starts_with(lead)) why.erase(0, lead.size());
  return {what, NotRunReason::kUpstreamUnreachable, why};
}

Json not_run_json(const std::vector<NotRun>& parts) {
  Json list = Json::array();
  for (const NotRun& part : parts)
    list.push_back({{"what", part.what},
                    {"sentinel", "NOT_RUN:" + reason_name(part.reason)},
                    {"why", part.why}});
  return list;
}

std::string not_run_text(const std::vector<NotRun>& parts) {
  if (parts.empty()) return "";
  std::string text = fmt::format("\nnot run: {}\n", parts.size());
  for (const NotRun& part : parts)
    text += report::paragraph(
        "  ", fmt::format("{}: NOT_RUN:{}: {}", part.what, reason_name(part.reason), part.why));
  return text;
}

}  // namespace patchbench
