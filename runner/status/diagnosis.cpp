#include "status/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/file_text.h"
#include "status/verdict_index.h"
#include "status/windows.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::array kHitNames = {"hit", "not_hit", "not_measured", "version_unknown",
                                  "not_installed"};

/// What the records say of one release.
struct Measured {
  BugState state = BugStatus::kNotMeasured;
  std::string record;
  std::map<std::string, std::string> files;  ///< file -> SHA-256 or "absent", as far as recorded
  bool has_files() const {
    return std::any_of(files.begin(), files.end(),
                       [](const auto& entry) { return entry.second != "absent"; });
  }
};
using Releases = std::map<std::string, Measured>;

/// A failure on one device outweighs what another device says.
int weight_of(const BugState& state) {
  switch (state.status()) {
    case BugStatus::kNotMeasured:
      return 0;
    case BugStatus::kUnresolved:
      return 1;
    case BugStatus::kUnsupported:
      return 2;
    case BugStatus::kAbsent:
      return 3;
    case BugStatus::kPresent:
      return 4;
  }
  return 0;
}

Releases releases_of(const VerdictIndex& verdicts, const Manifest& pack, const UpstreamUse& use) {
  Releases releases;
  for (const TierWindow& window : windows_of(verdicts, pack)) {
    if (window.upstream != use.name) continue;
    for (const ReleaseState& release : window.states) {
      Measured& one = releases[release.version];
      if (weight_of(release.state) <= weight_of(one.state)) continue;
      one = {release.state, release.record, {}};
      const std::optional<Record> record = verdicts.archive.find(release.record);
      const Json files =
          record ? record->predicate().at("context").value("files", Json::object()) : Json();
      for (const std::string& file : use.files) {
        if (files.contains(file)) one.files[file] = files[file].get<std::string>();
      }
    }
  }
  std::erase_if(releases,
                [](const auto& entry) { return entry.second.state == BugStatus::kNotMeasured; });
  return releases;
}

/// The name under which an upstream is installed.
std::string package_of(const Upstream& upstream) {
  return normalised(upstream.releases.empty() ? upstream.name : upstream.releases.front().project);
}

void conclude(Diagnosis& one, const Measured& measured, const std::string& remark) {
  one.record = measured.record;
  if (measured.state == BugStatus::kUnresolved) {
    one.state = Hit::kNotMeasured;
    one.why = "its run gave no answer";
  } else if (measured.state == BugStatus::kAbsent || measured.state == BugStatus::kUnsupported) {
    one.state = Hit::kNotHit;
    one.why = measured.state == BugStatus::kAbsent ? "the bug is not there"
                                                   : "the release has no such code";
  } else {
    one.state = Hit::kHit;
    one.why = measured.state.text();
  }
  if (one.state != Hit::kHit && !remark.empty()) one.why += "; " + remark;
}

void leave_open(Diagnosis& one, const std::string& why) {
  one.state = Hit::kNotMeasured;
  one.why = why;
}

/// By the files that are installed: whether they decide.
bool is_known_by_files(Diagnosis& one, const Releases& releases,
                       const std::map<std::string, std::string>& files) {
  std::vector<std::string> same;
  for (const auto& [version, measured] : releases) {
    if (measured.has_files() && measured.files == files) same.push_back(version);
  }
  const auto own = releases.find(one.listed.version);
  if (same.empty()) {
    if (own == releases.end() || !own->second.has_files()) return false;
    leave_open(one, "its files are not those of the release " + one.listed.version);
    return true;
  }
  const bool is_own = std::find(same.begin(), same.end(), one.listed.version) != same.end();
  const std::string& version = is_own ? one.listed.version : same.front();
  for (const std::string& other : same) {
    if (is_own || releases.at(other).state == releases.at(version).state) continue;
    leave_open(one,
               fmt::format("its files are those of {} and of {}, which differ", version, other));
    return true;
  }
  conclude(one, releases.at(version), is_own ? "" : "its files are those of " + version);
  return true;
}

void judge(Diagnosis& one, const Releases& releases, const Installed& installed,
           const UpstreamUse& use) {
  const std::string& version = one.listed.version;
  const auto files = installed_files(installed, use.files);
  if (!files.empty() && is_known_by_files(one, releases, files)) return;
  if (!one.listed.source.empty()) {
    leave_open(one,
               "it comes from a " + one.listed.source + ", so that its version names no release");
  } else if (version.empty()) {
    one.state = Hit::kVersionUnknown;
    one.why = "it is named without an exact version";
  } else if (version.find('+') != std::string::npos) {
    leave_open(one, "a local version is a build of its own");
  } else if (const auto at = releases.find(version); at != releases.end()) {
    conclude(one, at->second, "");
  } else {
    leave_open(one, "no record");
  }
}

/// What the shipped data say that the mitigation does about a hit.
void add_mitigation(Diagnosis& one, const Json& data) {
  if (one.state != Hit::kHit) return;
  if (data.is_null()) {
    one.mitigation = "none";
    return;
  }
  if (data.contains("not_needed")) {
    one.state = Hit::kNotHit;
    one.why = "no mitigation is needed";
    return;
  }
  const std::string package = data.at("package").get<std::string>();
  if (package != one.upstream) {
    one.mitigation = "acts on " + package;
    return;
  }
  const Json& releases = data.at("releases");
  one.acts = releases.contains(one.listed.version) &&
             releases.at(one.listed.version).contains("mitigated");
  one.mitigation = one.acts ? "acts" : "refuses: not verified on " + one.listed.version;
}

void add_next(Diagnosis& one, const Manifest& pack, const std::string& python) {
  if (one.state != Hit::kNotMeasured && one.state != Hit::kVersionUnknown) return;
  const bool is_release = one.listed.source.empty() && !one.listed.version.empty() &&
                          one.listed.version.find('+') == std::string::npos;
  if (!is_release && python.empty()) return;
  one.next = "patchbench reproduce " + one.slug;
  if (one.upstream != pack.upstreams.front().name) one.next += " --of " + one.upstream;
  one.next += is_release ? " --upstream " + one.listed.version : " --python " + python;
}

/// The shipped data of a slug, mitigations/patchbench_mitigations/data/<slug>.json; null without.
Json shipped_data(const Context& context, const std::string& slug) {
  const fs::path file = context.root / "mitigations/patchbench_mitigations/data" / (slug + ".json");
  return fs::exists(file) ? parse_json(read_file(file), file.string()) : Json();
}

}  // namespace

std::string hit_name(Hit state) { return kHitNames.at(static_cast<std::size_t>(state)); }

std::vector<Diagnosis> diagnoses_of(const Context& context, const Installed& installed,
                                    const std::string& python) {
  std::vector<Diagnosis> all;
  const Pins pins = context.pins();
  for (const std::string& slug : context.slugs()) {
    const Manifest pack = context.manifest(slug);
    const Json data = shipped_data(context, slug);
    std::optional<VerdictIndex> verdicts;
    for (const UpstreamUse& use : pack.upstreams) {
      const std::string package = package_of(pins.upstream(use.name));
      const auto listed = installed.packages.find(package);
      if (use.from_environment || listed == installed.packages.end()) continue;
      if (!verdicts) verdicts = index_verdicts(context, {.slug = slug, .before = {}});
      const Releases releases = releases_of(*verdicts, pack, use);
      for (const Listed& version : listed->second) {
        all.push_back({.slug = slug, .upstream = use.name, .package = package, .listed = version});
        judge(all.back(), releases, installed, use);
        add_mitigation(all.back(), data);
        add_next(all.back(), pack, python);
      }
    }
    if (verdicts || pack.upstreams.empty()) continue;
    const std::string name =
        pack.mitigated().empty() ? pack.upstreams.front().name : pack.mitigated();
    all.push_back({.slug = slug,
                   .upstream = name,
                   .package = package_of(pins.upstream(name)),
                   .state = Hit::kNotInstalled});
  }
  return all;
}

}  // namespace patchbench
