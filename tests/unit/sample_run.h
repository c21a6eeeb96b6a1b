#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/record.h"

namespace patchbench::sample {

/// A context as a run of pack 09 on the CPU has it, every member filled. `number` makes run ids
/// differ.
inline RunContext context(int number = 1) {
  RunContext c;
  c.run_id = sha256_hex("run " + std::to_string(number)).substr(0, 16);
  c.started = "2026-02-03T04:05:06Z";
  c.tool = "patchbench 0.1.0";
  c.slug = "liger_flce_none_bwd";
  c.manifest_sha256 = sha256_hex("manifest");
  c.pin = RunPin(Json{{"upstream", "liger-kernel"},
                      {"version", "0.8.0"},
                      {"project", "liger-kernel"},
                      {"file", "liger_kernel-0.8.0-py3-none-any.whl"},
                      {"sha256", sha256_hex("wheel")},
                      {"date", "2026-01-01"},
                      {"environment", "torch-2.11"}});
  c.tree = std::string(40, 'a');
  c.files = {{"liger_kernel/ops/fused_linear_cross_entropy.py", sha256_hex("file 1")},
             {"liger_kernel/ops/utils.py", sha256_hex("file 2")}};
  c.environment = "torch-2.11-cp311-0123456789ab";
  c.sandbox = {"podman", true, sha256_hex("image")};
  c.sandbox.add_given("limits", "podman");
  c.machine = {{"device", "cpu"}, {"cpu", "Some CPU @ 2.00GHz"}, {"os", "Debian GNU/Linux 12"}};
  return c;
}

/// A mitigation's program that is wrong without it and right with it.
inline Json program() {
  const Json right = {{"error", 1e-7}, {"bound", 1e-5}};
  return {{"sha256", sha256_hex("program")},           {"stand_in", false}, {"forced", false},
          {"off", {{"error", 0.25}, {"bound", 1e-5}}}, {"auto", right},     {"named", right}};
}

inline Observation observation(const std::string& subject, const std::string& case_name,
                               CaseRole role, CaseStatus status) {
  Observation o;
  o.slug = "liger_flce_none_bwd";
  o.subject = subject;
  o.case_name = case_name;
  o.role = role;
  o.device = "cpu";
  o.seed = 1;
  o.status = status;
  if (status == CaseStatus::kPresent) o.failure_class = "wrong_gradients";
  if (status != CaseStatus::kPresent && status != CaseStatus::kAbsent)
    o.reason = "the subject was killed after 300 s";
  for (const char* tensor : {"loss", "grad_input", "grad_weight", "grad_bias"}) {
    o.measures.push_back({.tensor = tensor,
                          .layer = "row",
                          .got = 0.31415926535897931,
                          .plain = 1.2345678901234567e-7,
                          .limit = 2.4691357802469134e-7,
                          .pass = status == CaseStatus::kAbsent,
                          .where = "[17,3]"});
  }
  o.inputs_sha256 = sha256_hex("inputs " + case_name);
  o.outputs_sha256 = sha256_hex("outputs " + subject + case_name);
  o.self_reported = {{"torch", "2.11.0"}, {"triton", "3.6.0"}, {"wall_s", 1.5}};
  o.outside = {{"wall_s", 3.25}, {"exit", 0}};
  return o;
}

/// What a reproduction on the red pin sees: one red trigger, one green control.
inline std::vector<Observation> red_observations() {
  return {observation("upstream", "masked_fp32", CaseRole::kTrigger, CaseStatus::kPresent),
          observation("upstream", "sum_fp32", CaseRole::kControl, CaseStatus::kAbsent)};
}

inline QuestionContext question() {
  QuestionContext q;
  q.is_red_pin = true;
  q.classes = {"wrong_gradients", "reduction_ignored"};
  return q;
}

/// The records of one whole run: its observations, then the verdict that cites them.
inline std::vector<Record> run(int number = 1) {
  const std::vector<Observation> status = red_observations();
  std::vector<Record> records;
  std::vector<std::string> digests;
  for (const Observation& o : status) {
    records.push_back(make_observation_record(context(number), o));
    digests.push_back(records.back().digest());
  }
  records.push_back(
      make_verdict_record(context(number), question(), sentinel_of(status, question()), digests));
  return records;
}

/// A folder of its own that goes with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "patchbench-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace patchbench::sample
