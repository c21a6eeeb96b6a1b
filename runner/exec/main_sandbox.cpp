#include <csignal>
#include <iostream>

#include "core/error.h"
#include "core/file_text.h"
#include "exec/sandbox.h"
#include "exec/supervisor.h"

namespace {

constexpr int kSubjectFailed = 1;
constexpr int kUsage = 2;
constexpr int kEngineFailed = 3;

}  // namespace

/// patchbench-sandbox SPEC.json: runs one spec, writes its report.
/// Exit: 0 the subject ended by itself with 0, 1 it failed or was killed, 2 usage, 3 the engine
/// failed.
int main(int argc, char** argv) {
  using namespace patchbench;
  if (argc != 2) {
    std::cerr << "usage: patchbench-sandbox SPEC.json\n";
    return kUsage;
  }
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) std::signal(number, exec::request_stop);
  try {
    const auto spec = exec::SandboxSpec::from_json(parse_json(read_file(argv[1]), argv[1]));
    const exec::SandboxReport report = exec::run_sandboxed(spec);
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
