#include "exec/image.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/engine.h"
#include "exec/probe.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "exec/spawn.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// Where a recipe's results are: named by what the recipe says, so that a changed recipe is a new
/// image.
struct ImageFolder {
  fs::path recipe, record, tree, tar;
};

ImageFolder image_folder(const std::string& name, const fs::path& cache, const fs::path& root) {
  ImageFolder place;
  place.recipe = root / "env/images" / name;
  std::string all;
  for (const char* file : {"build.sh", "packages.txt", "../tree_digest.py"}) {
    if (!fs::exists(place.recipe / file))
      throw Error(ErrorCode::kUsage,
                  (place.recipe / file).string() + ": not there; no base image of this name");
    all += file_text(place.recipe / file).value_or("");
  }
  const std::string stem = name + "-" + sha256_hex(all).substr(0, 12);
  const fs::path folder = cache / "images";
  place.record = folder / (stem + ".json");
  place.tree = folder / (stem + ".tree");
  place.tar = folder / (stem + ".tar");
  return place;
}

std::optional<BaseImage> recorded(SandboxKind kind, const ImageFolder& place) {
  const Json json = Json::parse(file_text(place.record).value_or(""), nullptr, false);
  if (!json.is_object() || !json.contains("ids") || !json["ids"].contains(sandbox_name(kind)))
    return std::nullopt;
  return BaseImage{json["ids"][sandbox_name(kind)].get<std::string>(),
                   json.at("tree_digest").get<std::string>(), json.at("python").get<std::string>(),
                   json.at("tag").get<std::string>()};
}

/// One builder at a time; the others wait and find its result.
class BuildLock {
 public:
  explicit BuildLock(const fs::path& file)
      : fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (!fd_ || ::flock(fd_.get(), LOCK_EX) != 0)
      throw Error(ErrorCode::kInternal, file.string() + ": cannot be locked");
  }

 private:
  Fd fd_;
};

/// Runs the recipe; returns its last words as key=value pairs.
Json build(const ImageFolder& place) {
  if (::geteuid() != 0)
    throw Error(
        ErrorCode::kNotRunnable,
        "a base image can be built by root only; try sudo env/bootstrap.sh, or --sandbox bwrap");
  if (find_program("debootstrap").empty())
    throw Error(ErrorCode::kNotRunnable,
                "debootstrap is not installed; apt-get install debootstrap");
  progress("building the base image " + place.recipe.filename().string() +
           " by debootstrap (about three minutes, once)");
  const fs::path log = place.record.string() + ".log";
  Command command{.argv = {"bash", (place.recipe / "build.sh").string(), place.tree.string(),
                           place.tar.string()}};
  command.stderr_file = log;
  const Exit built = run(command);
  if (!built.ok()) {
    const Exit tail = run({.argv = {"tail", "-n", "1", log.string()}});
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("the base image could not be built: {} (all of it: {})",
                            shown(tail.out.substr(0, tail.out.find('\n'))), log.string()));
  }
  Json result;
  std::istringstream lines(built.out);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) result[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return result;
}

std::string import(SandboxKind kind, const EngineSettings& settings, const ImageFolder& place) {
  const Exit imported =
      run_engine(kind, settings,
                 {"import", place.tar.string(),
                  "localhost/patchbench-" + place.recipe.filename().string() + ":latest"},
                 std::chrono::minutes(10));
  if (!imported.ok())
    throw Error(ErrorCode::kNotRunnable, fmt::format("{} import: {}", sandbox_name(kind),
                                                     shown(imported.err + imported.error)));
  std::istringstream lines(imported.out);
  std::string id;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) id = line;
  }
  return id;
}

}  // namespace

std::optional<BaseImage> find_base_image(SandboxKind kind, const std::string& name,
                                         const fs::path& cache, const fs::path& root) {
  auto found = recorded(kind, image_folder(name, cache, root));
  if (!found) return std::nullopt;
  const Exit exit = run_engine(kind, engine_settings(kind, cache),
                               {"image", "inspect", "--format", "{{.Id}}", found->id});
  if (!exit.ok()) return std::nullopt;
  return found;
}

void export_base_image(SandboxKind kind, const BaseImage& image, const fs::path& tar,
                       const fs::path& cache) {
  const EngineSettings settings = engine_settings(kind, cache);
  const std::string name = fmt::format("patchbench-export-{}", ::getpid());
  const auto engine = [&](const std::vector<std::string>& arguments) {
    const Exit done = run_engine(kind, settings, arguments, std::chrono::minutes(10));
    if (!done.ok())
      throw Error(ErrorCode::kNotRunnable,
                  fmt::format("{} {}: {}", sandbox_name(kind), arguments[0],
                              shown(done.err.substr(0, done.err.find('\n')) + done.error)));
  };
  engine({"create", "--name", name, image.id, "true"});
  try {
    engine({"export", "--output", tar.string(), name});
  } catch (const Error&) {
    run_engine(kind, settings, {"rm", "--force", name});
    throw;
  }
  engine({"rm", "--force", name});
}

BaseImage ensure_base_image(SandboxKind kind, const std::string& name, const fs::path& cache,
                            const fs::path& root) {
  if (const auto found = find_base_image(kind, name, cache, root)) return *found;
  const ImageFolder place = image_folder(name, cache, root);
  fs::create_directories(place.record.parent_path());
  const BuildLock lock(place.record.string() + ".lock");
  if (const auto found = find_base_image(kind, name, cache, root)) return *found;
  const EngineSettings settings = engine_settings(kind, cache);
  const Json built = build(place);
  Json record = Json::parse(file_text(place.record).value_or(""), nullptr, false);
  if (!record.is_object() ||
      record.value("tree_digest", "") != built.at("tree_digest").get<std::string>())
    record = built;
  record["ids"][sandbox_name(kind)] = import(kind, settings, place);
  fs::remove(place.tar);
  const fs::path part = place.record.string() + ".part";
  std::ofstream(part) << record.dump() << "\n";
  fs::rename(part, place.record);
  return recorded(kind, place).value();
}

}  // namespace patchbench::exec
