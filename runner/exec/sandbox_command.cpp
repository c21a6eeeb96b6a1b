#include "exec/sandbox_command.h"

#include <csignal>
#include <iostream>

#include "core/error.h"
#include "core/file_text.h"
#include "exec/sandbox.h"
#include "exec/supervisor.h"

namespace patchbench::exec {
namespace {

constexpr int kSubjectFailed = 1;
constexpr int kUsage = 2;
constexpr int kEngineFailed = 3;

}  // namespace

int run_sandbox_command(int argc, const char* const* argv) {
  if (argc != 2) {
    std::cerr << "usage: patchbench-sandbox SPEC.json\n";
    return kUsage;
  }
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) std::signal(number, request_stop);
  try {
    const auto spec = SandboxSpec::from_json(parse_json(read_file(argv[1]), argv[1]));
    const SandboxReport report = run_sandboxed(spec);
    if (!report.error.empty()) std::cerr << "patchbench-sandbox: " << report.error << "\n";
    if (report.engine_failed) return kEngineFailed;
    const bool is_clean =
        report.exit_code == 0 && report.signal == 0 && !report.timed_out && !report.out_of_memory;
    return is_clean ? 0 : kSubjectFailed;
  } catch (const Error& e) {
    std::cerr << "patchbench-sandbox: " << e.what() << "\n";
    return e.code() == ErrorCode::kUsage ? kUsage : kEngineFailed;
  } catch (const std::exception& e) {
    std::cerr << "patchbench-sandbox: " << e.what() << "\n";
    return kEngineFailed;
  }
}

}  // namespace patchbench::exec
