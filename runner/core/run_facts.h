#pragma once
#include <string>
#include <utility>

#include "core/json.h"
#include "core/pin.h"

namespace patchbench {

/// The release that a run was about, as its record has it. A record of an older version may hold
/// other keys: they are kept.
class RunPin {
 public:
  RunPin() = default;  ///< of a model or an op: none
  explicit RunPin(Json json) : json_(std::move(json)) {}
  /// `companions`: name -> version; null without any.
  RunPin(const Pin& pin, const Json& companions);
  /// An installed stack.
  static RunPin installed(const std::string& upstream);
  /// Every release: of a window.
  static RunPin all_of(const std::string& upstream);

  bool is_none() const { return json_.empty(); }
  bool is_installed() const { return version() == "host"; }
  std::string upstream() const { return text("upstream"); }
  std::string version() const { return text("version"); }
  std::string sha256() const { return text("sha256"); }
  /// The pack's other upstreams that ran with it: name -> version; null without any.
  Json companions() const { return json_.value("beside", Json()); }
  const Json& json() const { return json_; }
  bool operator==(const RunPin&) const = default;

 private:
  std::string text(const char* key) const { return json_.value(key, ""); }
  Json json_ = Json::object();
};

/// What kept the subject of a run apart from the machine.
class RunSandbox {
 public:
  RunSandbox() = default;  ///< not said
  explicit RunSandbox(Json json) : json_(std::move(json)) {}
  RunSandbox(const std::string& kind, bool is_isolated, const std::string& image = "");
  /// A subject of the judge's own process.
  static RunSandbox in_process() { return {"in_process", true}; }

  bool is_none() const { return json_.empty(); }
  bool is_in_process() const { return kind() == "in_process"; }
  std::string kind() const { return json_.value("kind", ""); }
  bool is_isolated() const { return json_.value("isolated", false); }
  /// What the subject was given with the release, by digest.
  void add_given(const std::string& what, const std::string& digest) { json_[what] = digest; }
  const Json& json() const { return json_; }
  bool operator==(const RunSandbox&) const = default;

 private:
  Json json_ = Json::object();
};

}  // namespace patchbench
