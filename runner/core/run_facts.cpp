#include "core/run_facts.h"

namespace patchbench {

RunPin::RunPin(const Pin& pin, const Json& companions) : json_(pin.to_json()) {
  if (!companions.empty()) json_["beside"] = companions;
}

RunPin RunPin::installed(const std::string& upstream) {
  return RunPin(Json{{"upstream", upstream}, {"version", "host"}, {"kind", "host"}});
}

RunPin RunPin::all_of(const std::string& upstream) {
  return RunPin(Json{{"upstream", upstream}, {"version", "all"}});
}

RunSandbox::RunSandbox(const std::string& kind, bool is_isolated, const std::string& image)
    : json_{{"kind", kind}, {"isolated", is_isolated}} {
  if (!image.empty()) json_["image"] = image;
}

}  // namespace patchbench
