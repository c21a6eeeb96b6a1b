#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace patchbench {

/// How a tree is had.
enum class PinKind { kFile, kGit, kPath };

/// One exact upstream version.
struct Pin {
  std::string upstream;  ///< key in env/pins.json
  std::string version;   ///< "0.8.0", "git:<40 hex>", "path:<absolute folder>"
  PinKind kind = PinKind::kFile;
  std::string project;      ///< index project name, kFile
  std::string filename;     ///< kFile
  std::string sha256;       ///< kFile
  std::string url;          ///< kGit
  std::string commit;       ///< kGit
  std::string date;         ///< ISO day of release or commit, may be empty
  std::string note;         ///< kGit: what a named commit is, in our words
  std::string prefix;       ///< where the package root lies: "" in a wheel, "src/" in git,
                            ///< "<name>-<v>/src/" in an sdist
  std::string environment;  ///< lock name, e.g. "torch-2.11"
  Json to_json() const;
};

/// A version for people: a commit by ten digits, a release as it is.
std::string short_version(const std::string& version);

/// A release of the index that is not locked on purpose.
struct LeftOut {
  std::string version, reason;
};

/// One upstream of env/pins.json.
struct Upstream {
  std::string name, package, license, url, git_prefix, environment;
  std::vector<Pin> releases;      ///< oldest first
  std::vector<LeftOut> left_out;  ///< releases that are not locked, each with its reason
  std::vector<Pin> commits;       ///< named git pins
  /// What a window goes over: the releases, or the commits of code that is never released.
  const std::vector<Pin>& versions() const { return releases.empty() ? commits : releases; }
};

/// env/pins.json, checked. Order of releases is the file's.
class Pins {
 public:
  static Pins parse(std::string_view text, const std::string& path);
  const Upstream& upstream(std::string_view name) const;  ///< Error(kUsage) with did-you-mean
  /// A release ("0.8.0"), "git:<40 hex, or 7 or more that start one named commit>", or "path:DIR"
  /// (DIR is a clone laid out as in git and is kept as written: the caller makes it absolute).
  /// Throws Error(kUsage) with did-you-mean on an unknown version.
  Pin resolve(std::string_view upstream, std::string_view version) const;
  const std::map<std::string, Upstream>& all() const { return upstreams_; }

 private:
  std::map<std::string, Upstream> upstreams_;
};

}  // namespace patchbench
