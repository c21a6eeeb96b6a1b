#include "core/pin.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/day.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/schema.h"
#include "core/slug.h"

namespace patchbench {
namespace {

constexpr std::string_view kGit = "git:", kPath = "path:";
constexpr size_t kMinPrefix = 7;

/// Reads one object of pins.json: every key must be asked for, every required one must be there.
class Fields {
 public:
  Fields(const Json& object, std::string pointer, const std::string& path, const JsonLines& lines)
      : object_(object), pointer_(std::move(pointer)), path_(path), lines_(lines) {
    if (!object_.is_object()) fail("an object should stand here");
  }

  std::string text(const std::string& key) {
    const Json& value = at(key);
    if (!value.is_string()) fail("\"" + key + "\" must be a string", key);
    return value.get<std::string>();
  }

  std::string optional_text(const std::string& key) {
    known_.push_back(key);
    return object_.contains(key) ? text(key) : "";
  }

  const Json& optional_array(const std::string& key) {
    static const Json kEmpty = Json::array();
    known_.push_back(key);
    return object_.contains(key) ? array(key) : kEmpty;
  }

  const Json& array(const std::string& key) {
    const Json& value = at(key);
    if (!value.is_array()) fail("\"" + key + "\" must be an array", key);
    return value;
  }

  const Json& at(const std::string& key) {
    known_.push_back(key);
    if (!object_.contains(key)) fail("\"" + key + "\" is missing");
    return object_.at(key);
  }

  void no_others() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        fail("unknown key" + did_you_mean(shown(key), known_), key);
      }
    }
  }

  [[noreturn]] void fail(const std::string& reason, const std::string& key = "") const {
    fail_at(path_, lines_, key.empty() ? pointer_ : pointer_ + "/" + pointer_segment(key), reason);
  }

  std::string below(const std::string& key) const { return pointer_ + "/" + pointer_segment(key); }

 private:
  const Json& object_;
  std::string pointer_;
  const std::string& path_;
  const JsonLines& lines_;
  std::vector<std::string> known_;
};

/// Where the package root lies inside a file: a wheel is laid out as installed, an sdist as the
/// repository is.
std::string prefix_of_file(const std::string& file, const std::string& git_prefix) {
  for (const std::string_view end : {".tar.gz", ".zip"}) {
    if (file.ends_with(end)) return file.substr(0, file.size() - end.size()) + "/" + git_prefix;
  }
  return "";
}

Pin read_release(Fields fields, const Upstream& upstream, const std::string& project) {
  Pin pin;
  pin.upstream = upstream.name;
  pin.kind = PinKind::kFile;
  pin.project = project;
  pin.version = fields.text("version");
  pin.date = fields.text("date");
  pin.filename = fields.text("file");
  pin.sha256 = fields.text("sha256");
  pin.environment = fields.optional_text("environment");
  fields.no_others();
  const bool is_archive = pin.filename.ends_with(".whl") || pin.filename.ends_with(".tar.gz") ||
                          pin.filename.ends_with(".zip");
  if (pin.version.empty() || pin.version.find(':') != std::string::npos)
    fields.fail("no version", "version");
  if (!is_archive || pin.filename.find('/') != std::string::npos) {
    fields.fail("must be the name of a wheel or an sdist", "file");
  }
  if (!is_hex(pin.sha256, 64)) fields.fail("must be 64 lower-case hex digits", "sha256");
  if (!is_day(pin.date)) fields.fail("must be a day, YYYY-MM-DD", "date");
  pin.prefix = prefix_of_file(pin.filename, upstream.git_prefix);
  if (pin.environment.empty()) pin.environment = upstream.environment;
  return pin;
}

Pin git_pin(const Upstream& upstream, const std::string& commit) {
  Pin pin;
  pin.upstream = upstream.name;
  pin.version = std::string(kGit) + commit;
  pin.kind = PinKind::kGit;
  pin.url = upstream.url;
  pin.commit = commit;
  pin.prefix = upstream.git_prefix;
  pin.environment = upstream.environment;
  return pin;
}

Pin read_commit(Fields fields, const Upstream& upstream) {
  Pin pin = git_pin(upstream, fields.text("commit"));
  pin.date = fields.text("date");
  pin.note = fields.text("note");
  fields.no_others();
  if (!is_hex(pin.commit, 40)) fields.fail("must be 40 lower-case hex digits", "commit");
  if (!is_day(pin.date)) fields.fail("must be a day, YYYY-MM-DD", "date");
  return pin;
}

LeftOut read_left_out(Fields fields, const std::set<std::string>& known) {
  LeftOut one{.version = fields.text("version"), .reason = fields.text("reason")};
  fields.no_others();
  if (one.reason.empty()) fields.fail("a release is left out for a reason", "reason");
  if (known.contains(one.version))
    fields.fail("version " + one.version + " is locked or left out already", "version");
  return one;
}

Upstream read_upstream(const std::string& name, Fields fields, const std::string& path,
                       const JsonLines& lines) {
  Upstream upstream;
  upstream.name = name;
  const std::string project = fields.text("project");
  upstream.package = fields.text("package");
  upstream.license = fields.text("license");
  upstream.url = fields.text("url");
  upstream.git_prefix = fields.text("git_prefix");
  upstream.environment = fields.text("environment");
  if (!upstream.git_prefix.empty() && !upstream.git_prefix.ends_with('/')) {
    fields.fail("must be empty or end in \"/\"", "git_prefix");
  }
  const Json& releases = fields.array("releases");
  std::set<std::string> known;
  for (size_t i = 0; i < releases.size(); ++i) {
    const Fields row(releases[i], fields.below("releases") + "/" + std::to_string(i), path, lines);
    upstream.releases.push_back(read_release(row, upstream, project));
    const Pin& pin = upstream.releases.back();
    if (!known.insert(pin.version).second)
      row.fail("version " + pin.version + " stands twice", "version");
    if (i > 0 && pin.date < upstream.releases[i - 1].date)
      row.fail("the oldest release comes first", "date");
  }
  const Json& left_out = fields.optional_array("left_out");
  for (size_t i = 0; i < left_out.size(); ++i) {
    const Fields row(left_out[i], fields.below("left_out") + "/" + std::to_string(i), path, lines);
    upstream.left_out.push_back(read_left_out(row, known));
    known.insert(upstream.left_out.back().version);
  }
  const Json& commits = fields.array("commits");
  for (size_t i = 0; i < commits.size(); ++i) {
    const Fields row(commits[i], fields.below("commits") + "/" + std::to_string(i), path, lines);
    upstream.commits.push_back(read_commit(row, upstream));
    if (!known.insert(upstream.commits.back().commit).second)
      row.fail("this commit stands twice", "commit");
  }
  fields.no_others();
  return upstream;
}

Pin resolve_commit(const Upstream& upstream, const std::string& commit) {
  std::vector<std::string> named;
  const Pin* found = nullptr;
  int num_found = 0;
  for (const Pin& pin : upstream.commits) {
    named.push_back(std::string(kGit) + pin.commit.substr(0, 10));
    if (commit.size() >= kMinPrefix && pin.commit.starts_with(commit)) {
      found = &pin;
      ++num_found;
    }
  }
  if (num_found == 1) return *found;
  if (num_found == 0 && is_hex(commit, 40)) return git_pin(upstream, commit);
  if (num_found > 1) {
    throw Error(ErrorCode::kUsage, upstream.name + ": git:" + commit + " is the start of " +
                                       std::to_string(num_found) +
                                       " named commits; write more digits");
  }
  throw Error(ErrorCode::kUsage,
              upstream.name + ": git:" + shown(commit) +
                  " is neither 40 lower-case hex digits nor the start (7 digits or more) of a "
                  "commit named in env/pins.json" +
                  did_you_mean(shown(std::string(kGit) + commit), named));
}

}  // namespace

Json Pin::to_json() const {
  Json out = {{"upstream", upstream}, {"version", version}, {"environment", environment}};
  const auto put = [&](const char* key, const std::string& value) {
    if (!value.empty()) out[key] = value;
  };
  put("project", project);
  put("file", filename);
  put("sha256", sha256);
  put("url", url);
  put("commit", commit);
  put("date", date);
  put("prefix", prefix);
  return out;
}

Pins Pins::parse(std::string_view text, const std::string& path) {
  JsonLines lines;
  const Json document = parse_json(text, path, &lines);
  Fields top(document, "", path, lines);
  const Json& upstreams = top.at("upstreams");
  top.no_others();
  if (!upstreams.is_object()) top.fail("must be an object", "upstreams");
  Pins pins;
  for (const auto& [name, value] : upstreams.items()) {
    const std::string pointer = "/upstreams/" + pointer_segment(name);
    pins.upstreams_.emplace(name,
                            read_upstream(name, Fields(value, pointer, path, lines), path, lines));
  }
  return pins;
}

std::string short_version(const std::string& version) {
  return version.starts_with("git:") ? version.substr(0, 14) : version;
}

const Upstream& Pins::upstream(std::string_view name) const {
  const auto found = upstreams_.find(std::string(name));
  if (found != upstreams_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, value] : upstreams_) names.push_back(known);
  throw Error(ErrorCode::kUsage, "no upstream \"" + shown(name) + "\" in env/pins.json" +
                                     did_you_mean(shown(name), names));
}

Pin Pins::resolve(std::string_view upstream_name, std::string_view version) const {
  const Upstream& known = upstream(upstream_name);
  if (version.starts_with(kGit))
    return resolve_commit(known, std::string(version.substr(kGit.size())));
  if (version.starts_with(kPath)) {
    if (version.size() == kPath.size())
      throw Error(ErrorCode::kUsage, "path: needs a folder, e.g. path:.");
    Pin pin;
    pin.upstream = known.name;
    pin.version = std::string(version);
    pin.kind = PinKind::kPath;
    pin.prefix = known.git_prefix;
    pin.environment = known.environment;
    return pin;
  }
  std::vector<std::string> versions;
  for (const Pin& pin : known.releases) {
    if (pin.version == version) return pin;
    versions.push_back(pin.version);
  }
  std::reverse(versions.begin(), versions.end());  // a list that is cut short shows the newest
  throw Error(ErrorCode::kUsage,
              known.name + ": no release \"" + shown(version) + "\" in env/pins.json" +
                  did_you_mean(shown(version), versions) + " (also git:COMMIT or path:DIR)");
}

}  // namespace patchbench
