#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "core/error.h"
#include "function/function_pack.h"
#include "function/reference.h"
#include "function/worker.h"
#include "harness/explore.h"
#include "harness/space.h"

namespace patchbench::function {
namespace {

/// `explore_function REQUEST.json RECORDS_FD`. REQUEST.json: {"axes": what axes.json holds,
/// "function" and "reference": "module:function", "python", "call": the path of call.py, "work",
/// "device", "seed", "draw", "seconds", "given": axes that are judged instead of drawn ones,
/// "library_path": the user's LD_LIBRARY_PATH}.
/// Writes observations as a reproducer does, and what is drawn from to WORK/space.json.
class Program {
 public:
  explicit Program(const Json& words)
      : words_(words),
        deadline_(std::chrono::steady_clock::now() +
                  std::chrono::seconds(words.at("seconds").get<int>())),
        pack_(parse_plan(words.at("axes")), is_interpreted() ? Bf16::kTruncated : Bf16::kRounded) {}

  void run(int records_fd) {
    const harness::Request request = request_of(records_fd);
    const std::filesystem::path work = words_.at("work").get<std::string>();
    // This program may have been started with a libtorch of its own; the user's torch finds its
    // own libraries.
    const std::string library_path = words_.at("library_path");
    library_path.empty() ? ::unsetenv("LD_LIBRARY_PATH")
                         : ::setenv("LD_LIBRARY_PATH", library_path.c_str(), 1);
    std::filesystem::create_directories(work);
    std::ofstream(work / "space.json") << pack_.plan().space;
    for (const Json& axes : request.given) {
      Case item{};
      item.name = "--case";
      item.axes = axes;
      pack_.check(item);
    }
    const harness::RecordWriter records(records_fd);
    Worker function = started("function"), reference = started("reference");
    harness::explore(
        pack_, request,
        [&](const std::vector<harness::SubjectCase>& batch) { return function.answers(batch); },
        records,
        [&](const std::vector<harness::SubjectCase>& batch) {
          return references_of(batch, [&](const std::vector<harness::SubjectCase>& cases) {
            return reference.answers(cases);
          });
        });
  }

 private:
  static bool is_interpreted() {
    const char* set = std::getenv("TRITON_INTERPRET");
    return set != nullptr && std::string_view(set) == "1";
  }

  harness::Request request_of(int records_fd) const {
    harness::Request request;
    request.slug = pack_.slug();
    request.device = words_.at("device");
    request.first_seed = request.last_seed = request.seed = words_.at("seed");
    request.num_drawn = words_.at("draw");
    request.most_seconds = words_.at("seconds");
    request.given = words_.at("given");
    request.spaces = Json::array({pack_.plan().space});
    request.records_fd = records_fd;
    return request;
  }

  /// One side, with its plan next to its work folder.
  Worker started(const std::string& side) const {
    const std::filesystem::path work = words_.at("work").get<std::string>();
    const std::filesystem::path plan = work / (side + ".json");
    std::ofstream(plan) << Json{{"target", words_.at(side)},
                                {"gradients", pack_.plan().gradients},
                                {"arguments", pack_.plan().arguments}};
    return Worker({words_.at("python"), words_.at("call"), plan.string()}, work / side,
                  words_.at("device"), deadline_);
  }

  Json words_;
  std::chrono::steady_clock::time_point deadline_;
  FunctionPack pack_;
};

int failed(int code, const std::string& why) {
  std::cerr << "explore_function: " << why << "\n";
  return code;
}

int run(int argc, char** argv) {
  if (argc != 3) return failed(2, "want REQUEST.json RECORDS_FD");
  try {
    Program(parse_json(harness::read_text(argv[1]), argv[1])).run(std::atoi(argv[2]));
    return 0;
  } catch (const Error& e) {
    return failed(e.code() == ErrorCode::kUsage         ? 2
                  : e.code() == ErrorCode::kNotRunnable ? 4
                                                        : 3,
                  e.what());
  } catch (const Json::exception& e) {
    return failed(2, fmt::format("axes.json: an axis has a value of the wrong type: {}", e.what()));
  } catch (const std::exception& e) {
    return failed(3, harness::printable(e.what(), 400));
  }
}

}  // namespace
}  // namespace patchbench::function

int main(int argc, char** argv) { return patchbench::function::run(argc, argv); }
