#include "git/history.h"

#include <algorithm>

#include "core/digest.h"
#include "core/error.h"
#include "git/objects.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words_of(const std::string& text, char by) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

History::History(const Places& places, const Upstream& upstream)
    : upstream_(upstream),
      lock_(places, upstream.name + ".history"),
      bare_(places.cache / "git" / (upstream.name + ".history.git")) {
  if (fs::exists(bare_ / "patchbench-ready")) return;
  fs::remove_all(bare_);
  Objects::open(bare_);
  make_partial(bare_, upstream_.url);
  fs::create_directory(bare_ / "patchbench-ready");
}

std::string History::git(const std::vector<std::string>& arguments) {
  return run_git(bare_, arguments, upstream_.url);
}

/// The commit that a release's tag names.
std::string History::commit_of_tag(const std::string& version) {
  for (const std::string prefix : {"v", "", "core_v", "release_v"}) {
    const std::string tag = "refs/tags/" + prefix + version;
    std::string found;
    for (const std::string& line :
         words_of(git({"ls-remote", "upstream", tag, tag + "^{}"}), '\n')) {
      found = line.substr(0, 40);  // the peeled commit comes after its tag object
    }
    if (is_hex(found, 40)) return found;
  }
  throw Error(ErrorCode::kUsage,
              upstream_.url + " has no tag for " + version + "; name the commit as git:<40 hex>");
}

std::string History::commit_of(const Pin& pin) {
  if (pin.kind == PinKind::kPath) {
    throw Error(ErrorCode::kUsage,
                pin.version + ": a folder has no place in the upstream's history");
  }
  return pin.kind == PinKind::kGit ? pin.commit : commit_of_tag(pin.version);
}

std::string History::merge_base(const std::string& one, const std::string& other) {
  try {
    return git({"merge-base", one, other}).substr(0, 40);
  } catch (const Error&) {
    throw Error(ErrorCode::kUsage,
                upstream_.url + ": " + one + " and " + other + " have no common history");
  }
}

void History::fetch(const std::vector<std::string>& commits) {
  std::vector<std::string> arguments = {
      "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none", "upstream"};
  bool is_needed = false;
  Objects objects = Objects::open(bare_);
  for (const std::string& commit : commits) {
    const std::string ref = "refs/patchbench/" + commit;
    fs::remove(bare_ / (ref + ".lock"));
    is_needed = is_needed || objects.ref(ref).empty();
    arguments.push_back("+" + commit + ":" + ref);
  }
  if (is_needed) git(arguments);
}

std::vector<Pin> History::commits_between(const Pin& good, const Pin& bad,
                                          const std::vector<std::string>& files) {
  const std::string from = commit_of(good), to = commit_of(bad);
  fetch({from, to});
  std::vector<std::string> arguments = {
      "log", "--topo-order", "--reverse", "--no-renames", "--format=%H %cs", from + ".." + to,
      "--"};
  for (const std::string& file : files) arguments.push_back(upstream_.git_prefix + file);
  std::vector<Pin> commits;
  const auto add = [&](const std::string& row) {
    Pin pin;
    pin.upstream = upstream_.name;
    pin.kind = PinKind::kGit;
    pin.commit = row.substr(0, 40);
    pin.version = "git:" + pin.commit;
    pin.url = upstream_.url;
    pin.date = row.substr(41);
    pin.prefix = upstream_.git_prefix;
    pin.environment = bad.environment.empty() ? upstream_.environment : bad.environment;
    commits.push_back(pin);
  };
  const std::string base = merge_base(from, to);
  if (base != from) add(git({"log", "-1", "--format=%H %cs", base}));
  for (const std::string& row : words_of(git(arguments), '\n')) add(row);
  return commits;
}

}  // namespace patchbench::git
