#include "core/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace patchbench {
namespace {

/// A number that is not finite is only ever like itself.
bool is_near(double recorded, double now, double limit) {
  if (!std::isfinite(recorded) || !std::isfinite(now))
    return recorded == now || (std::isnan(recorded) && std::isnan(now));
  return std::fabs(recorded - now) <= limit;
}

std::string status_text(const Observation& o) {
  return case_status_name(o.status) + (o.failure_class.empty() ? "" : " " + o.failure_class);
}

/// "" or what differs between two measures of one tensor.
std::string measure_differs(const Measure& recorded, const Measure& now) {
  const auto said = [&](const char* what, double then, double today) {
    return fmt::format("{} {}: {} {:.6g} recorded, {:.6g} now, limit {:.3g}", now.tensor, now.layer,
                       what, then, today, now.limit);
  };
  if (recorded.pass != now.pass)
    return fmt::format("{}: {} recorded, {} now", now.tensor, recorded.pass ? "passed" : "failed",
                       now.pass ? "passed" : "failed");
  // The layer that decides is the one nearest to its limit: of two passes it may change.
  if (recorded.layer != now.layer)
    return now.pass ? ""
                    : fmt::format("{}: layer {} failed as recorded, {} now", now.tensor,
                                  recorded.layer, now.layer);
  if (!is_near(recorded.got, now.got, now.limit)) return said("error", recorded.got, now.got);
  if (!is_near(recorded.plain, now.plain, now.limit))
    return said("plain error", recorded.plain, now.plain);
  return "";
}

}  // namespace

std::string replayed_name(Replayed::How how) {
  constexpr const char* kNames[] = {"bitwise", "within_tolerance", "differs"};
  return kNames[static_cast<int>(how)];
}

Replayed compare_replay(const Observation& recorded, const Observation& now, Determinism kind) {
  const auto differs = [](std::string why) {
    return Replayed{Replayed::How::kDiffers, std::move(why)};
  };
  if (recorded.inputs_sha256 != now.inputs_sha256) return differs("its inputs are others");
  if (status_text(recorded) != status_text(now))
    return differs(status_text(recorded) + " recorded, " + status_text(now) + " now" +
                   (now.reason.empty() ? "" : ": " + now.reason));
  if (recorded.measures.size() != now.measures.size())
    return differs(
        fmt::format("{} measures recorded, {} now", recorded.measures.size(), now.measures.size()));
  for (const Measure& measure : now.measures) {
    const auto at = std::find_if(
        recorded.measures.begin(), recorded.measures.end(),
        [&](const Measure& m) { return m.tensor == measure.tensor && m.layer == measure.layer; });
    const auto other =
        at != recorded.measures.end()
            ? at
            : std::find_if(recorded.measures.begin(), recorded.measures.end(),
                           [&](const Measure& m) { return m.tensor == measure.tensor; });
    if (other == recorded.measures.end()) return differs(measure.tensor + ": not in the record");
    if (std::string why = measure_differs(*other, measure); !why.empty())
      return differs(std::move(why));
  }
  if (recorded.outputs_sha256 == now.outputs_sha256) return {Replayed::How::kBitwise, ""};
  if (kind == Determinism::kBitwise) return differs("its outputs differ bit for bit");
  return {Replayed::How::kWithinTolerance, ""};
}

}  // namespace patchbench
