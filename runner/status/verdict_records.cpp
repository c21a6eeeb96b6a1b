#include "status/verdict_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/digest.h"
#include "core/file_text.h"
#include "core/function_table.h"
#include "core/package_list.h"
#include "status/pack_records.h"
#include "status/same_code.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

/// A failure on one device outweighs what another device says.
int state_weight(const BugState& state) {
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

/// The digests of an upstream's files in a record.
Files files_in(const Record& record, const UpstreamUse& use) {
  const Json named = record.predicate().at("context").value("files", Json::object());
  Files files;
  for (const std::string& file : use.files) {
    if (named.contains(file)) files[file] = named[file].get<std::string>();
  }
  return files;
}

enum class Validated { kNoAnswer, kHolds, kFails };
Validated verdict_of(const Finding& finding) {
  const std::optional<Sentinel> sentinel = finding.outcome().sentinel;
  if (sentinel == Sentinel::kFixValidated || sentinel == Sentinel::kEquivalenceShown ||
      sentinel == Sentinel::kEquivalenceProved)
    return Validated::kHolds;
  return !sentinel || sentinel == Sentinel::kNotRun ? Validated::kNoAnswer : Validated::kFails;
}

/// Makes the table of one pack.
class PackTable {
 public:
  PackTable(const Context& context, const PackRecords& verdicts, const FunctionTable& functions,
            const Json& older, const Json& tags, const Manifest& pack)
      : context_(context),
        verdicts_(verdicts),
        functions_(functions),
        older_(older),
        tags_(tags),
        pack_(pack),
        slug_(pack.slug.str()) {}

  TablePack make() {
    TablePack out;
    for (const UpstreamUse& use : pack_.upstreams) {
      if (use.from_environment) continue;
      const Upstream& upstream = verdicts_.pins.upstream(use.name);
      TableUpstream row{.name = use.name, .package = package_of(upstream)};
      for (const LeftOut& one : upstream.left_out) row.left_out[one.version] = one.reason;
      row.releases = releases_of(upstream, use);
      row.patches = patches_of(use);
      row.older = older_of(use);
      add_tags(row, use);
      out.upstreams.push_back(std::move(row));
    }
    add_mitigation(out);
    return out;
  }

  /// The start of the newest run that a state or a patch rests on.
  const std::string& newest() const { return newest_; }

 private:
  /// The releases of env/older_releases.json; an archive where it has none of the pack's words.
  std::map<std::string, OlderRelease> older_of(const UpstreamUse& use) const {
    std::map<std::string, OlderRelease> found;
    if (use.code_words.empty() || !older_.contains(use.name)) return found;
    for (const Json& row : older_.at(use.name)) {
      const auto without = row.at("without").get<std::set<std::string>>();
      const bool has_none =
          std::all_of(use.code_words.begin(), use.code_words.end(),
                      [&](const std::string& word) { return without.contains(word); });
      OlderRelease& one = found[row.at("version").get<std::string>()];
      if (!has_none) continue;
      one.archive = row.at("sha256");
      for (const std::string& file : use.files) {
        if (row.at("files").contains(file)) one.files[file] = row.at("files").at(file);
      }
    }
    return found;
  }

  /// The tags of env/git_tags.json, where all the files of the pack were compared.
  void add_tags(TableUpstream& row, const UpstreamUse& use) const {
    if (!tags_.contains(use.name)) return;
    const Json& known = tags_.at(use.name);
    row.repositories = known.at("repositories");
    const auto compared = known.at("files").get<std::set<std::string>>();
    if (!std::all_of(use.files.begin(), use.files.end(),
                     [&](const std::string& file) { return compared.contains(file); }))
      return;
    for (const Json& tag : known.at("tags"))
      row.tags.push_back({tag.at("tag"), tag.at("commit"), tag.at("release")});
  }

  /// The name under which an upstream is installed.
  static std::string package_of(const Upstream& upstream) {
    return normalised(upstream.releases.empty() ? upstream.name
                                                : upstream.releases.front().project);
  }

  /// The releases of the index, then every commit with a record.
  std::vector<std::string> versions_of(const Upstream& upstream) const {
    std::vector<std::string> versions;
    for (const Pin& pin : upstream.releases) versions.push_back(pin.version);
    std::set<std::string> commits;
    for (const auto& [key, cells] : verdicts_.verdict_index.by_key()) {
      const bool is_commit = key.slug == slug_ && key.upstream == upstream.name &&
                             key.question.is(Question::kReproduce) &&
                             key.version.starts_with("git:");
      if (is_commit) commits.insert(key.version);
    }
    versions.insert(versions.end(), commits.begin(), commits.end());
    return versions;
  }

  std::set<std::string> devices_of(const std::string& upstream) const {
    std::set<std::string> devices;
    for (const auto& [key, cells] : verdicts_.verdict_index.by_key()) {
      if (key.slug != slug_ || key.upstream != upstream || !key.question.is(Question::kReproduce))
        continue;
      for (const auto& [device, cell] : cells) {
        if (cell.newest() != nullptr) devices.insert(device);
      }
    }
    return devices;
  }

  std::vector<TableRelease> releases_of(const Upstream& upstream, const UpstreamUse& use) {
    const std::vector<std::string> versions = versions_of(upstream);
    std::vector<TableRelease> rows;
    for (const std::string& version : versions) {
      const auto digest_of = [&](const std::string& file, const std::string& entry) {
        return functions_.find(use.name, version, file, entry);
      };
      rows.push_back({.version = version, .code = code_digests(use, digest_of)});
    }
    for (const std::string& device : devices_of(use.name)) {
      const auto states = states_of(verdicts_.verdict_index, slug_, use.name, device, versions);
      for (std::size_t i = 0; i < states.size(); ++i) take(rows[i], states[i], device, use);
    }
    for (TableRelease& one : rows) {
      if (one.state != BugStatus::kPresent || !one.has_files(use.files)) continue;
      // What a run showed of the same files holds here, too: not every release ran on every device.
      for (const TableRelease& other : rows) {
        if (other.files == one.files) merge_classes(one.classes, other.classes);
      }
    }
    return rows;
  }

  static void merge_classes(std::vector<TableClass>& into, const std::vector<TableClass>& more) {
    for (const TableClass& row : more) {
      const bool is_known = std::any_of(
          into.begin(), into.end(), [&](const TableClass& one) { return one.name == row.name; });
      if (!is_known) into.push_back(row);
    }
  }

  void take(TableRelease& row, const ReleaseState& status, const std::string& device,
            const UpstreamUse& use) {
    BugState state = status.state;
    if (state == BugStatus::kNotMeasured) return;
    const auto observations = cited_observations(verdicts_.records, status.record);
    if (state == BugStatus::kUnresolved && has_no_such_code(observations))
      state = BugStatus::kUnsupported;
    const std::optional<Record> record = verdicts_.records.find(status.record);
    if (!record) return;
    const VerdictKey key{slug_, use.name, row.version, "", "reproduce"};
    const Finding& finding = *verdicts_.verdict_index.by_key().at(key).at(device).newest();
    newest_ = std::max(newest_, finding.made.date);
    Files files = files_in(*record, use);
    if (state_weight(state) > state_weight(row.state)) {
      row.state = state;
      row.device = device;
      row.record = status.record;
      row.files.swap(files);
    }
    row.files.merge(files);
    if (state == BugStatus::kPresent) add_classes(row, state, observations, device, status.record);
  }

  /// The failure classes that the cases of one verdict showed.
  void add_classes(TableRelease& row, const BugState& state,
                   const std::vector<Observation>& observations, const std::string& device,
                   const std::string& record) const {
    std::vector<TableClass> found = {{state.failure_class(), device, record}};
    for (const Observation& o : observations) {
      const bool is_shown = o.counts && o.subject == SubjectKind::kUpstream &&
                            o.status == CaseStatus::kPresent && o.role != CaseRole::kSurvey &&
                            o.role != CaseRole::kCode && pack_.classes.contains(o.failure_class);
      if (is_shown) merge_classes(found, {{o.failure_class, device, record}});
    }
    merge_classes(row.classes, found);
  }

  /// Every set of edited files whose newest validation says that the fix holds.
  std::vector<TablePatch> patches_of(const UpstreamUse& use) {
    std::map<Files, std::pair<Finding, std::vector<std::string>>> newest;
    const std::map<std::string, std::string> names = edit_names();
    verdicts_.records.each_finding({.slug = slug_, .before = {}}, [&](const Finding& finding) {
      const bool is_answer = finding.upstream == use.name &&
                             finding.question.is(Question::kValidate) && finding.is_counted &&
                             verdict_of(finding) != Validated::kNoAnswer;
      if (!is_answer) return;
      const std::optional<Record> patched = patched_in(finding.digest);
      if (!patched) return;
      std::vector<std::string> edits;
      for (const Json& edit : patched->predicate().at("context").value("edits", Json::array())) {
        const auto name = names.find(edit.get<std::string>());
        if (name == names.end()) return;
        edits.push_back(name->second);
      }
      const Files files = files_in(*patched, use);
      if (edits.empty() || files.size() != use.files.size()) return;
      auto& [last, last_edits] = newest[files];
      if (last.made < finding.made) last = finding, last_edits = edits;
    });
    std::vector<TablePatch> patches;
    for (const auto& [files, entry] : newest) {
      const auto& [finding, edits] = entry;
      if (verdict_of(finding) != Validated::kHolds) continue;
      newest_ = std::max(newest_, finding.made.date);
      patches.push_back(
          {fmt::format("{}", fmt::join(edits, ", ")), finding.version, finding.digest, files});
    }
    return patches;
  }

  /// The first record of the patched subject that a verdict cites.
  std::optional<Record> patched_in(const std::string& verdict) const {
    const std::optional<Record> record = verdicts_.records.find(verdict);
    if (!record) return std::nullopt;
    for (const std::string& digest : cited_by(*record)) {
      const std::optional<Record> cited = verdicts_.records.find(digest);
      if (cited && observation_of(*cited).subject == SubjectKind::kPatched) return cited;
    }
    return std::nullopt;
  }

  /// SHA-256 of an edit's text -> its name, of the edits that are the fix.
  std::map<std::string, std::string> edit_names() const {
    std::map<std::string, std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(context_.root / "patches" / slug_, none)) {
      const std::string name = entry.path().filename().string();
      const bool is_fix = name.ends_with(".edit") && name[0] >= '0' && name[0] <= '9';
      if (is_fix) names[sha256_hex(read_file(entry.path()))] = entry.path().stem().string();
    }
    return names;
  }

  /// mitigations/patchbench_mitigations/data/<slug>.json says where a mitigation was verified.
  void add_mitigation(TablePack& out) const {
    const fs::path file =
        context_.root / "mitigations/patchbench_mitigations/data" / (slug_ + ".json");
    std::error_code none;
    if (!fs::exists(file, none)) return;
    const Json data = parse_json(read_file(file), file.string());
    if (!data.contains("package") || data.contains("not_needed")) return;
    out.mitigates = data.at("package");
    for (TableUpstream& upstream : out.upstreams) {
      if (upstream.name != out.mitigates) continue;
      for (TableRelease& release : upstream.releases) {
        const Json& releases = data.at("releases");
        release.is_mitigated = releases.contains(release.version) &&
                               releases.at(release.version).contains("mitigated");
      }
    }
  }

  const Context& context_;
  const PackRecords& verdicts_;
  const FunctionTable& functions_;
  const Json& older_;
  const Json& tags_;
  const Manifest& pack_;
  std::string slug_, newest_;
};

}  // namespace

VerdictTable table_from_records(const Context& context) {
  VerdictTable table;
  const PackRecords verdicts = read_pack_records(context, {});
  const fs::path file = context.root / "env/functions.json";
  const FunctionTable functions =
      FunctionTable::parse(file_text(file).value_or("{}"), file.string());
  const auto rows_of_file = [&](const char* name) {
    const fs::path table_file = context.root / name;
    return parse_json(file_text(table_file).value_or("{}"), table_file.string());
  };
  const Json older = rows_of_file("env/older_releases.json");
  const Json tags = rows_of_file("env/git_tags.json");
  std::string newest;
  for (const Manifest& pack : verdicts.packs) {
    PackTable one(context, verdicts, functions, older, tags, pack);
    table.packs[pack.slug.str()] = one.make();
    newest = std::max(newest, one.newest());
  }
  constexpr std::size_t kDay = 10;
  table.date = newest.empty() ? "no records" : newest.substr(0, kDay);
  return table;
}

}  // namespace patchbench
