#include "status/scan_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/digest.h"
#include "core/json.h"
#include "core/pin_arguments.h"
#include "core/shell_word.h"
#include "core/version_range.h"
#include "status/same_code.h"

namespace patchbench {
namespace {

/// Whether the files hold nothing but a version: builds of one version do not differ in them.
bool are_version_files(const std::vector<std::string>& files) {
  return std::all_of(files.begin(), files.end(), [](const std::string& file) {
    const std::string name = file.substr(file.rfind('/') + 1);
    return name == "version.py" || name == "_version.py" || name == "VERSION";
  });
}

bool is_local(const std::string& version) { return version.find('+') != std::string::npos; }

/// Whether a package of an inventory meets one of a condition.
enum class Met { kNo, kUnknown, kYes };

Met is_met(const NeededPackage& needed, const Inventory& inventory,
           const std::map<std::string, std::vector<SourceCopy>>& copies) {
  const std::string name = normalised(needed.package);
  const auto listed = inventory.list.packages.find(name);
  const auto copied = copies.find(name);
  std::string module = name;
  std::replace(module.begin(), module.end(), '-', '_');
  const bool is_module = std::any_of(
      inventory.roots.begin(), inventory.roots.end(),
      [&](const std::filesystem::path& root) { return std::filesystem::exists(root / module); });
  const bool is_copied = is_module || (copied != copies.end() && !copied->second.empty());
  if (listed == inventory.list.packages.end() && !is_copied)
    return inventory.list.lists_all ? Met::kNo : Met::kUnknown;
  if (needed.versions.empty()) return Met::kYes;
  if (listed == inventory.list.packages.end()) return Met::kUnknown;
  Met best = copied != copies.end() && copied->second.size() > 1 ? Met::kUnknown : Met::kNo;
  for (const Listed& one : listed->second) {
    const std::string version = one.version.substr(0, one.version.find('+'));
    const std::optional<bool> is_in = in_version_range(version, needed.versions);
    // A build of its own may hold what its version does not.
    const bool is_open = !is_in || (!*is_in && (!one.source.empty() || is_local(one.version)));
    best = std::max(best, is_open ? Met::kUnknown : *is_in ? Met::kYes : Met::kNo);
  }
  return best;
}

/// The older release of a version, equal as PEP 440 compares, in whose archive the code is not;
/// null without one.
const OlderRelease* older_release(const TableUpstream& upstream, const std::string& version) {
  for (const auto& [own, release] : upstream.older) {
    const bool is_same = own == version || compare_versions(own, version) == 0;
    if (is_same && !release.archive.empty()) return &release;
  }
  return nullptr;
}

/// "it comes from a folder", of the source of a listed version.
std::string origin_text(const std::string& source) {
  if (source == "conda") return "conda built it";
  if (source == "git") return "it comes from git";
  return source == "url" ? "it comes from a URL" : "it comes from a " + source;
}

/// "0.6.0", or "0.6.0 to 0.8.1".
std::string ends_of(const std::vector<std::string>& releases) {
  if (releases.size() == 1) return releases.front();
  return releases.front() + " to " + releases.back();
}

std::string needed_text(const NeededPackage& needed) {
  return needed.package + (needed.versions.empty() ? "" : " " + needed.versions);
}

}  // namespace

void ScanJudge::leave_open(ScanAnswer& answer, const std::string& why) const {
  answer.state = ScanState::kUnknown;
  answer.why = why;
}

void ScanJudge::judge(ScanAnswer& answer, const Listed& listed, const SourceCopy* copy) const {
  judge_release(answer, listed, copy);
  if (answer.state == ScanState::kHit) check_requirements(answer);
  if (answer.state == ScanState::kHit) add_mitigation(answer);
  if (answer.state == ScanState::kUnknown) add_next(answer);
}

void ScanJudge::judge_functions(ScanAnswer& answer, const FunctionCopy& copy) const {
  answer.files_digest = copy.file->sha256;
  if (copy.twin == nullptr) return leave_open(answer, copy.differs);
  answer.twin = short_version(copy.twin->version);
  take(answer, *copy.twin, answer.twin_text());
  if (answer.state == ScanState::kHit) check_requirements(answer);
  if (answer.state == ScanState::kHit) answer.mitigation = "does not reach a copy";
}

void ScanJudge::judge_release(ScanAnswer& answer, const Listed& listed,
                              const SourceCopy* copy) const {
  if (upstream_ == nullptr) return leave_open(answer, "the verdict table does not know the pack");
  const Files files = copy == nullptr ? Files{} : copy->digests(use_.files);
  if (!files.empty()) return judge_files(answer, listed, *copy, files);
  const TableRelease* commit =
      listed.commit.empty() ? nullptr : upstream_->find("git:" + listed.commit);
  if (copy == nullptr && commit != nullptr && !commit->state.is_open())
    return take(answer, *commit, "its commit was measured");
  if (const std::string release = upstream_->release_at(listed);
      copy == nullptr && !release.empty()) {
    answer.version = release;
    judge_version(answer, {.version = release});
    if (answer.state == ScanState::kNotHit)
      answer.why += "; its files in git are those of " + release;
    return;
  }
  judge_version(answer, listed);
}

void ScanJudge::judge_files(ScanAnswer& answer, const Listed& listed, const SourceCopy& copy,
                            const Files& files) const {
  const std::string digest = sha256_hex(canonical_json(files));
  const bool is_build = !listed.source.empty() || is_local(listed.version);
  for (const TablePatch& patch : upstream_->patches) {
    if (patch.files != files) continue;
    answer.state = ScanState::kNotHit;
    answer.why = "patched: " + patch.edits;
    answer.record = patch.record;
    answer.is_patched = true;
    answer.files_digest = digest;
    return;
  }
  const TableRelease* own = upstream_->find(listed.version);
  if (are_version_files(use_.files)) {
    if (is_build)
      return leave_open(answer, "its files say which version it is, and not which build");
    if (own == nullptr || !own->has_files(use_.files))
      return leave_open(answer, "its files are not those of the release " + listed.version);
  }
  std::vector<const TableRelease*> same;
  for (const TableRelease& release : upstream_->releases) {
    const bool is_same = !release.state.is_open() && release.has_files(use_.files) &&
                         std::all_of(files.begin(), files.end(), [&](const auto& file) {
                           return release.files.at(file.first) == file.second;
                         });
    if (is_same) same.push_back(&release);
  }
  const bool is_own =
      !is_build && own != nullptr && std::find(same.begin(), same.end(), own) != same.end();
  if (!is_own) answer.files_digest = digest;
  if (same.empty()) {
    const CodeDigests code = code_digests(use_, copy);
    if (const TableRelease* twin = same_code_as(*upstream_, code)) {
      answer.twin = short_version(twin->version);
      answer.is_same_code = twin->code.whole == code.whole;
      return take(answer, *twin, answer.twin_text());
    }
    for (const auto& [version, older] : upstream_->older) {
      const bool is_same =
          !older.archive.empty() && std::all_of(files.begin(), files.end(), [&](const auto& file) {
            const auto at = older.files.find(file.first);
            return file.second == (at == older.files.end() ? "absent" : at->second);
          });
      if (is_same) return take_older(answer, older, "; its files are those of " + version);
    }
    const bool is_known = own != nullptr && !own->state.is_open();
    const std::string nearest = nearest_code(*upstream_, code);
    return leave_open(answer, (is_known ? "its files are not those of the release " + own->version
                                        : "its files are those of no version that was measured") +
                                  (nearest.empty() ? "" : "; " + nearest));
  }
  if (is_own) return take(answer, *own, "");
  for (const TableRelease* other : same) {
    if (other->says_the_same(*same.front())) continue;
    return leave_open(answer, fmt::format("its files are those of {} and of {}, which differ",
                                          same.front()->version, other->version));
  }
  take(answer, *same.front(), "its files are those of " + short_version(same.front()->version));
}

void ScanJudge::judge_version(ScanAnswer& answer, const Listed& listed) const {
  if (!listed.source.empty()) {
    leave_open(answer, origin_text(listed.source) + ", so that its version names no release");
  } else if (!listed.range.empty()) {
    judge_range(answer, listed.range);
  } else if (listed.version.empty()) {
    leave_open(answer, "it is named without an exact version");
  } else if (is_local(listed.version)) {
    leave_open(answer, "a local version is a build of its own");
  } else if (const TableRelease* own = upstream_->find(listed.version);
             own != nullptr && !own->state.is_open()) {
    take(answer, *own, "");
  } else if (const OlderRelease* older = older_release(*upstream_, listed.version)) {
    take_older(answer, *older, "");
  } else {
    leave_open(answer, unmeasured(listed.version));
  }
}

void ScanJudge::take_older(ScanAnswer& answer, const OlderRelease& release,
                           const std::string& remark) const {
  answer.state = ScanState::kNotHit;
  answer.why = "the code is not there" + remark;
  answer.archive = release.archive;
}

/// An installer takes the newest release of a range: a hit there is a hit. Of older ones it may be.
void ScanJudge::judge_range(ScanAnswer& answer, const std::string& range) const {
  std::vector<ScanAnswer> admitted;  // oldest first
  std::vector<std::string> hits;
  std::string open, floor;
  for (const TableRelease& release : upstream_->releases) {
    if (release.version.starts_with("git:") ||
        !in_version_range(release.version, range).value_or(false))
      continue;
    ScanAnswer one = answer;
    one.version = release.version;
    if (release.state.is_open()) {
      one.state = ScanState::kUnknown;
      open = release.version;
    } else {
      take(one, release, "");
    }
    const bool is_right = one.state == ScanState::kNotHit;
    if (one.state == ScanState::kHit) hits.push_back(release.version);
    floor = !is_right ? "" : floor.empty() ? release.version : floor;
    admitted.push_back(std::move(one));
  }
  if (admitted.empty()) return judge_older_range(answer, range);
  if (admitted.back().state == ScanState::kHit) {
    answer = std::move(admitted.back());
  } else if (!hits.empty()) {
    const auto worst = std::find_if(admitted.begin(), admitted.end(), [](const ScanAnswer& one) {
      return one.state == ScanState::kHit;
    });
    answer.classes = worst->classes;
    leave_open(answer,
               fmt::format("may be hit: {} {}{}", ends_of(hits), hits.size() == 1 ? "is" : "are",
                           floor.empty() ? "" : "; with " + floor + " as its floor it is not"));
  } else if (!open.empty()) {
    leave_open(answer, "no record of " + open + ", which it admits");
  } else {
    answer.state = ScanState::kNotHit;
    answer.why = "no release that it admits is hit";
    answer.record = admitted.back().record;
    answer.device = admitted.back().device;
  }
}

/// Of a range that admits no measured release: the code is in the archive of none that it admits.
void ScanJudge::judge_older_range(ScanAnswer& answer, const std::string& range) const {
  const OlderRelease* newest = nullptr;
  std::string version;
  for (const auto& [own, release] : upstream_->older) {
    // Whether a candidate of a release is admitted is not known.
    const std::optional<bool> is_in = in_version_range(own, range);
    if (!is_in.value_or(true)) continue;
    if (release.archive.empty())
      return leave_open(answer, "no record of " + own + ", which it admits");
    if (!is_in || (newest != nullptr && compare_versions(own, version).value_or(0) < 0)) continue;
    newest = &release;
    version = own;
  }
  if (newest == nullptr) return leave_open(answer, "no release that was measured is in its range");
  take_older(answer, *newest, " in any release that it admits");
}

std::string ScanJudge::unmeasured(const std::string& version) const {
  if (const auto left = upstream_->left_out.find(version); left != upstream_->left_out.end())
    return "no record: " + left->second;
  const TableRelease *oldest = nullptr, *newest = nullptr;
  for (const TableRelease& one : upstream_->releases) {
    if (one.state.is_open() || one.version.starts_with("git:")) continue;
    if (oldest == nullptr) oldest = &one;
    newest = &one;
  }
  const TableRelease* own = upstream_->find(version);
  if (own != nullptr && own->state == BugStatus::kUnresolved) return "its run gave no answer";
  if (newest == nullptr) return "no record";
  if (compare_versions(version, newest->version).value_or(0) > 0)
    return "no record: newer than " + newest->version + ", the newest that was measured";
  if (compare_versions(version, oldest->version).value_or(0) < 0)
    return "no record: older than " + oldest->version + ", the oldest that was measured";
  return "no record";
}

void ScanJudge::take(ScanAnswer& answer, const TableRelease& release,
                     const std::string& remark) const {
  answer.record = release.record;
  answer.device = release.device;
  if (release.state == BugStatus::kPresent) return take_classes(answer, release);
  answer.state = ScanState::kNotHit;
  answer.why =
      release.state == BugStatus::kAbsent ? "the bug is not there" : "the release has no such code";
  if (!remark.empty()) answer.why += "; " + remark;
}

void ScanJudge::take_classes(ScanAnswer& answer, const TableRelease& release) const {
  const std::vector<std::string> harmless = pack_.harmless_classes();
  std::string left_out;
  for (const TableClass& row : release.classes) {
    if (std::find(harmless.begin(), harmless.end(), row.name) != harmless.end()) {
      left_out += (left_out.empty() ? "" : ", ") + row.name;
      continue;
    }
    const auto meaning = pack_.classes.find(row.name);
    answer.classes.push_back(
        {.name = row.name,
         .impact = pack_.impact_of(row.name),
         .wrong = meaning == pack_.classes.end() ? pack_.title : meaning->second,
         .condition = pack_.condition_of(row.name),
         .record = row.record,
         .device = row.device});
    if (const Trigger* trigger = pack_.sized(row.name); trigger != nullptr) {
      answer.classes.back().size = trigger->size;
      answer.classes.back().size_record = trigger->size_record;
    }
  }
  answer.is_harmless = answer.classes.empty();
  if (answer.is_harmless) {
    answer.state = ScanState::kNotHit;
    answer.why = fmt::format("{} is there and harms no run of the release as it is: {}", left_out,
                             pack_.mitigation.at("not_needed").at("why").get<std::string>());
    return;
  }
  answer.state = ScanState::kHit;
  const std::vector<std::string>& order = impact_names();
  std::stable_sort(answer.classes.begin(), answer.classes.end(),
                   [&](const ScanClass& a, const ScanClass& b) {
                     return std::find(order.begin(), order.end(), a.impact) <
                            std::find(order.begin(), order.end(), b.impact);
                   });
  answer.why = answer.classes.front().name;
}

void ScanJudge::check_requirements(ScanAnswer& answer) const {
  std::string unmet, without;
  for (ScanClass& row : answer.classes) {
    for (const Requirement& needed : pack_.requirements) {
      if (!needed.is_for(use_.name, row.name)) continue;
      Met best = Met::kNo;
      std::string names;
      for (const NeededPackage& one : needed.any_of) {
        best = std::max(best, is_met(one, inventory_, copies_));
        names += (names.empty() ? "" : " or ") + needed_text(one);
      }
      if (best == Met::kUnknown) row.open = names;
      if (best != Met::kNo) continue;
      row.name.clear();
      without = names;
      unmet = fmt::format("a hit with {} alone, which is not here: {}", names, needed.why);
      break;
    }
  }
  std::erase_if(answer.classes, [](const ScanClass& row) { return row.name.empty(); });
  std::stable_partition(answer.classes.begin(), answer.classes.end(),
                        [](const ScanClass& row) { return row.open.empty(); });
  if (answer.classes.empty()) {
    answer.state = ScanState::kNotHit;
    answer.without = without;
    answer.why = unmet;
  } else if (answer.worst()->open.empty()) {
    answer.why = answer.worst()->name;
  } else {
    leave_open(answer,
               fmt::format("a hit ({}) with {}; whether that is installed is not known here",
                           answer.worst()->name, answer.worst()->open));
  }
}

void ScanJudge::add_mitigation(ScanAnswer& answer) const {
  const std::string& package = table_->mitigates;
  const TableRelease* own = upstream_->find(answer.version);
  if (package.empty()) {
    answer.mitigation = "none";
  } else if (package != use_.name) {
    answer.mitigation = "acts on " + package;
  } else {
    answer.acts = own != nullptr && own->is_mitigated && !is_local(answer.version);
    answer.mitigation = answer.acts              ? "acts"
                        : answer.version.empty() ? "refuses: its version is not known"
                                                 : "acts if its code is a verified release's";
  }
}

void ScanJudge::add_next(ScanAnswer& answer) const {
  // `reproduce` takes a release that is locked.
  const bool is_release = answer.source.empty() && !is_local(answer.version) &&
                          upstream_ != nullptr && upstream_->find(answer.version) != nullptr;
  const bool is_copy = answer.source == "copy";
  if (!is_release && !is_copy && inventory_.python.empty()) return;
  answer.next = "patchbench reproduce " + answer.slug;
  if (is_release || is_copy)
    answer.next +=
        " " + pin_word(answer.upstream, is_copy ? "path:" + answer.file : answer.version);
  else if (answer.upstream != pack_.upstreams.front().name)
    answer.next += " " + answer.upstream;
  if (!is_release && !is_copy) answer.next += " --python " + shell_word(inventory_.python);
}

}  // namespace patchbench
