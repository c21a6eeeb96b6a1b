#include "run/mitigation_program.h"

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "run/programs.h"
#include "run/subject_spec.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// Whether the data that the mitigation ships name this version as verified.
bool is_verified(const Context& context, const Setup& setup) {
  const fs::path file = context.root / "mitigations/patchbench_mitigations/data" /
                        (setup.target.manifest.slug.str() + ".json");
  if (!setup.target.pin || !fs::exists(file)) return false;
  const Json releases =
      parse_json(read_file(file), file.string()).value("releases", Json::object());
  return releases.value(setup.target.pin->version, Json::object()).contains("mitigated");
}

/// The three starts as the last line of the sandbox's log tells them; nothing else of it is read.
Json starts_of(const fs::path& log, const std::string& why_none) {
  const std::string text = fs::exists(log) ? read_file(log) : "";
  const std::size_t end = text.find_last_not_of('\n');
  const std::size_t begin = end == std::string::npos ? end : text.rfind('\n', end);
  Json told, starts;
  try {
    told = parse_json(text.substr(begin == std::string::npos ? 0 : begin + 1), "the program's log");
  } catch (const Error&) {
    told = Json::object();
  }
  for (const char* name : {"off", "auto", "named"}) {
    const Json start = told.is_object() ? told.value(name, Json()) : Json();
    const auto number = [&](const char* key) {
      return start.is_object() && start.contains(key) && start[key].is_number();
    };
    if (number("error") && number("bound")) {
      starts[name] = {{"error", start["error"]}, {"bound", start["bound"]}};
    } else {
      const bool is_told = start.is_object() && start.value("failed", Json()).is_string();
      starts[name] = {
          {"failed", is_told ? one_line(start["failed"].get<std::string>(), 200) : why_none}};
    }
  }
  return starts;
}

}  // namespace

Json run_mitigation_program(const Context& context, const Setup& setup) {
  const std::string slug = setup.target.manifest.slug.str();
  const std::string name = "mitigations/programs/" + slug + ".py";
  if (!fs::exists(context.root / name)) return {{"missing", name}};
  const std::string text = read_file(context.root / name);
  const bool is_forced = !is_verified(context, setup);

  const fs::path folder = setup.folder / "program";
  for (const char* inner : {"work/home", "work/tmp"}) fs::create_directories(folder / inner);
  RunContext ignored;
  const Subject subject = SubjectKind::kMitigated;
  exec::SandboxSpec spec = sandbox_spec(context, setup, subject,
                                        check_out(context, setup, subject, {}, ignored), folder);
  spec.argv = {setup.python, "/.pb/harness/program_runtime.py", "/.pb/" + name, slug};
  spec.env["PYTHONPATH"] += ":/.pb/subject:/.pb/harness";
  if (!is_forced) spec.env.erase("PATCHBENCH_FORCE");

  std::vector<std::string> argv = sandbox_program(context).argv;
  argv.push_back((folder / "spec.json").string());
  write_file(folder / "spec.json", spec.to_json().dump());
  exec::progress_on_terminal(slug + ": the mitigation's program, without it, by auto and by name");
  const exec::Exit exit = exec::run({.argv = argv});
  Json program = starts_of(
      spec.log, exit.error.empty() ? "its process gave no answer" : one_line(exit.error, 200));
  program["sha256"] = sha256_hex(text);
  // On a GPU a stand-in leaves what is installed in its place.
  program["stand_in"] =
      !setup.target.device.is_gpu() && text.find("import stand_in") != std::string::npos;
  program["forced"] = is_forced;
  return program;
}

}  // namespace patchbench
