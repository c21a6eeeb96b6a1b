#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench {

/// A package that a hit needs besides the release itself.
struct NeededPackage {
  std::string package;   ///< a distribution
  std::string versions;  ///< as core/version_range.h reads it; "" for every version
};

/// A condition of a hit of one upstream (`requires`): one of these packages is there.
struct Requirement {
  std::string upstream;
  std::vector<std::string> classes;  ///< the hits that it is for; empty: all
  std::vector<NeededPackage> any_of;
  std::string why;
  bool is_for(const std::string& upstream_name, const std::string& failure_class) const;
};

/// One rule for `scan --code` (`trigger[].code`). It has calls or keys, never both.
struct CodeRule {
  std::vector<std::string> calls;  ///< dotted names of one callable
  Json arguments, keys;            ///< arrays in the form of the schema's `code_value`
  bool needs_gradient = false;  ///< the call itself computes, and the class is about its backward
  std::vector<std::string> rules_out;  ///< upstreams: what holds says that they are not hit
};

/// What a failure class does to a training run, the worst first (`impact`).
const std::vector<std::string>& impact_names();
/// The impacts that set exit status 1 of `scan` where --fail-on does not say otherwise.
const std::vector<std::string>& failing_impacts();

/// Reports what a schema cannot say: an RFC 6901 pointer and the reason; does not return.
using RefuseManifest = std::function<void(const std::string&, const std::string&)>;

/// The names in `upstreams` or `classes` of a manifest.
std::set<std::string> row_names(const Json& rows);
/// `requires` of a manifest that its schema has passed.
std::vector<Requirement> requirements_from(const Json& document, const RefuseManifest& refuse);
/// `code` of the trigger at `pointer`, of a manifest with these upstreams.
std::vector<CodeRule> code_rules_from(const Json& trigger, const std::string& pointer,
                                      const std::set<std::string>& upstreams,
                                      const RefuseManifest& refuse);

}  // namespace patchbench
