#include "status/verdict_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/digest.h"
#include "core/error.h"
#include "core/fields.h"
#include "core/file_text.h"
#include "core/function_table.h"
#include "core/package_list.h"
#include "core/version_range.h"
#include "status/verdict_records.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 5;                // 4 had no tags of git
constexpr std::ptrdiff_t kMaxCached = 8;  // of several trees, each with records of its own

Json release_json(const TableRelease& one) {
  Json out = {{"version", one.version}, {"state", one.state.text()}};
  for (const TableClass& row : one.classes)
    out["classes"].push_back({{"class", row.name}, {"device", row.device}, {"record", row.record}});
  if (!one.device.empty()) out["device"] = one.device;
  if (!one.record.empty()) out["record"] = one.record;
  if (!one.files.empty()) out["files"] = one.files;
  if (!one.code.functions.empty())
    out["code"] = {{"functions", one.code.functions}, {"whole", one.code.whole}};
  if (one.is_mitigated) out["mitigated"] = true;
  return out;
}

FunctionDigests functions_of(const Json& files, const FieldReader& row) {
  FunctionDigests out;
  for (const auto& [file, functions] : files.items()) {
    if (!functions.is_object()) row.fail("functions must hold objects");
    for (const auto& [name, digest] : functions.items()) {
      if (!digest.is_string()) row.fail("functions must hold texts");
      out[file][name] = digest.get<std::string>();
    }
  }
  return out;
}

std::map<std::string, std::string> texts_of(FieldReader& row, const std::string& key) {
  std::map<std::string, std::string> out;
  if (!row.has(key)) return out;
  for (const auto& [name, value] : row.object(key).items()) {
    if (!value.is_string()) row.fail(key + " must hold texts");
    out[name] = value.get<std::string>();
  }
  return out;
}

Json rows_of(FieldReader& row, const std::string& key) {
  Json rows = row.value(key);
  if (!rows.is_array()) row.fail(key + " must be an array");
  for (const Json& one : rows) {
    if (!one.is_object()) row.fail(key + " must hold objects");
  }
  return rows;
}

TableRelease release_from(const Json& json, const std::string& where) {
  FieldReader row(json, where);
  TableRelease one{.version = row.text("version"), .state = row.text("state")};
  for (const Json& shown_class : row.has("classes") ? rows_of(row, "classes") : Json::array()) {
    FieldReader fields(shown_class, where);
    one.classes.push_back({fields.text("class"), fields.text("device"), fields.text("record")});
    fields.finish();
  }
  one.device = row.optional_text("device");
  one.record = row.optional_text("record");
  one.files = texts_of(row, "files");
  if (row.has("code")) {
    FieldReader code(row.object("code"), where);
    one.code = {functions_of(code.object("functions"), code), code.text("whole")};
    code.finish();
  }
  one.is_mitigated = row.has("mitigated") && row.boolean("mitigated");
  row.finish();
  if (!one.state.is_open() && one.record.empty()) row.fail("a state rests on a record");
  if ((one.state == BugStatus::kPresent) == one.classes.empty())
    row.fail("a bug that is present has classes, and no other state has");
  return one;
}

TableUpstream upstream_from(const Json& json, const std::string& where) {
  FieldReader row(json, where);
  TableUpstream one{.name = row.text("name"), .package = row.text("package")};
  for (const Json& release : rows_of(row, "releases"))
    one.releases.push_back(release_from(release, where + ": " + one.name));
  for (const Json& patch : rows_of(row, "patches")) {
    FieldReader fields(patch, where + ": " + one.name);
    one.patches.push_back({fields.text("edits"), fields.text("version"), fields.text("record"),
                           texts_of(fields, "files")});
    fields.finish();
  }
  one.left_out = texts_of(row, "left_out");
  for (const auto& [version, release] : row.object("older").items()) {
    if (!release.is_object()) row.fail("older must hold objects");
    FieldReader fields(release, where + ": " + one.name);
    one.older[version] = {fields.text("archive"), texts_of(fields, "files")};
    fields.finish();
  }
  one.repositories = row.texts("repositories");
  for (const Json& tag : rows_of(row, "tags")) {
    FieldReader fields(tag, where + ": " + one.name);
    one.tags.push_back({fields.text("tag"), fields.text("commit"), fields.text("release")});
    fields.finish();
  }
  row.finish();
  return one;
}

/// A digest over the names, sizes and times of every file that a table is made from.
std::string key_of(const Context& context) {
  Sha256 hash;
  hash.update(fmt::format("{} {}", kFormat, PATCHBENCH_VERSION));
  std::error_code none;
  std::vector<fs::path> files = {context.root / "env/pins.json",
                                 context.root / "env/functions.json",
                                 context.root / "env/older_releases.json",
                                 context.root / "env/git_tags.json",
                                 context.ledger,
                                 context.ledger.string() + "-wal"};
  for (const char* folder :
       {"packs", "patches", "reports/evidence", "mitigations/patchbench_mitigations/data"}) {
    auto it = fs::recursive_directory_iterator(context.root / folder, none);
    for (; it != fs::recursive_directory_iterator(); it.increment(none)) {
      const std::string kind = it->path().extension().string();
      if (kind == ".json" || kind == ".jsonl" || kind == ".edit") files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const auto size = fs::file_size(file, none);
    if (none) continue;
    hash.update(fmt::format("{}\n{} {}\n", file.string(), size,
                            fs::last_write_time(file, none).time_since_epoch().count()));
  }
  return hash.hex();
}

VerdictTable cached_table(const Context& context) {
  const fs::path folder = context.cache / "verdicts", file = folder / (key_of(context) + ".json");
  if (const auto text = file_text(file)) {
    try {
      return VerdictTable::parse(*text, file.string());
    } catch (const Error&) {
      // A damaged entry is made again.
    }
  }
  VerdictTable table = table_from_records(context);
  std::error_code none;
  const auto num_entries = std::distance(fs::directory_iterator(folder, none), {});
  if (num_entries >= kMaxCached) fs::remove_all(folder, none);
  try {
    write_whole(file, table.to_json().dump());
  } catch (const std::exception&) {
    // A cache that cannot be written costs time alone.
  }
  return table;
}

}  // namespace

bool CodeDigests::has_functions() const {
  for (const auto& [file, names] : functions) {
    for (const auto& [name, digest] : names) {
      if (digest != FunctionTable::kAbsent) return true;
    }
  }
  return false;
}

bool TableRelease::has_files(const std::vector<std::string>& wanted) const {
  bool is_any = false;
  for (const std::string& file : wanted) {
    const auto at = files.find(file);
    if (at == files.end()) return false;
    is_any |= at->second != "absent";
  }
  return is_any;
}

bool TableRelease::says_the_same(const TableRelease& other) const {
  const auto same = [](const TableClass& a, const TableClass& b) { return a.name == b.name; };
  return state.status() == other.state.status() &&
         std::is_permutation(classes.begin(), classes.end(), other.classes.begin(),
                             other.classes.end(), same);
}

bool TableUpstream::has_repository(const std::string& repository) const {
  return std::find(repositories.begin(), repositories.end(), repository) != repositories.end();
}

std::string TableUpstream::release_at(const Listed& place) const {
  const bool is_own = has_repository(place.repository);
  for (const TableTag& one : tags) {
    const bool is_same =
        place.commit.empty() ? is_own && one.tag == place.tag : one.commit == place.commit;
    if (is_same) return one.release;
  }
  return "";
}

const TableRelease* TableUpstream::find(const std::string& version) const {
  for (const TableRelease& one : releases) {
    if (one.version == version || compare_versions(one.version, version) == 0) return &one;
  }
  return nullptr;
}

const TableUpstream* TablePack::find(const std::string& upstream) const {
  for (const TableUpstream& one : upstreams) {
    if (one.name == upstream) return &one;
  }
  return nullptr;
}

Json VerdictTable::to_json() const {
  Json rows = Json::object();
  for (const auto& [slug, pack] : packs) {
    Json upstreams = Json::array();
    for (const TableUpstream& one : pack.upstreams) {
      Json releases = Json::array(), patches = Json::array();
      for (const TableRelease& release : one.releases) releases.push_back(release_json(release));
      for (const TablePatch& patch : one.patches)
        patches.push_back({{"edits", patch.edits},
                           {"version", patch.version},
                           {"record", patch.record},
                           {"files", patch.files}});
      Json older = Json::object(), tags = Json::array();
      for (const TableTag& row : one.tags)
        tags.push_back({{"tag", row.tag}, {"commit", row.commit}, {"release", row.release}});
      for (const auto& [version, release] : one.older)
        older[version] = {{"archive", release.archive}, {"files", release.files}};
      upstreams.push_back({{"name", one.name},
                           {"package", one.package},
                           {"releases", releases},
                           {"patches", patches},
                           {"left_out", one.left_out},
                           {"older", older},
                           {"repositories", one.repositories},
                           {"tags", tags}});
    }
    rows[slug] = {{"upstreams", upstreams}};
    if (!pack.mitigates.empty()) rows[slug]["mitigates"] = pack.mitigates;
  }
  return {{"patchbench_verdicts", kFormat}, {"date", date}, {"packs", rows}};
}

VerdictTable VerdictTable::parse(std::string_view text, const std::string& where) {
  const Json document = parse_json(text, where);
  if (!document.is_object() || !document.contains("patchbench_verdicts"))
    throw Error(ErrorCode::kUsage, where +
                                       ": is no verdict table; patchbench export --format verdicts "
                                       "writes one");
  FieldReader row(document, where);
  if (row.value("patchbench_verdicts") != kFormat)
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: a verdict table of another format; this patchbench reads format "
                            "{}; patchbench export --format verdicts writes one",
                            where, kFormat));
  VerdictTable table{.date = row.text("date")};
  for (const auto& [slug, json] : row.object("packs").items()) {
    const std::string here = where + ": " + shown(slug);
    if (!json.is_object()) row.fail("packs must hold objects");
    FieldReader fields(json, here);
    TablePack pack{.mitigates = fields.optional_text("mitigates")};
    for (const Json& one : rows_of(fields, "upstreams"))
      pack.upstreams.push_back(upstream_from(one, here));
    fields.finish();
    table.packs[slug] = std::move(pack);
  }
  row.finish();
  return table;
}

VerdictTable verdict_table(const Context& context, const std::string& db) {
  if (!db.empty()) return VerdictTable::parse(read_plain_file(db, kMaxInputBytes), db);
  std::error_code none;
  if (fs::is_directory(context.root / "reports/evidence", none)) return cached_table(context);
  const fs::path shipped = context.root / "verdicts.json";
  if (fs::exists(shipped, none)) {
    try {
      return VerdictTable::parse(read_file(shipped), shipped.string());
    } catch (const Error& error) {
      throw Error(ErrorCode::kInternal, error.what());
    }
  }
  throw Error(ErrorCode::kNotRunnable,
              fmt::format("{}: neither reports/evidence nor verdicts.json is there; name a verdict "
                          "table with --db FILE",
                          context.root.string()));
}

}  // namespace patchbench
