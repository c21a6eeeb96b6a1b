// The subject computes on a GPU and the judge on the CPU: `repro_<slug>` linked with the CPU half
// of libtorch alone.
#include "core/error.h"
#include "harness/cuda_half.h"
#include "harness/request.h"
#include "harness/tensor_file.h"
#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

TEST(JudgeDevice, IsTheCpuOrTheSubjects) {
  const ScratchFolder folder;
  const Json cases = {{"slug", "toy_pack"}, {"classes", {"zeroed"}}, {"cases", toy_cases({"one"})}};
  std::vector<std::string> words = {"--cases",      folder.write("c.json", cases.dump()),
                                    "--subject",    "upstream",
                                    "--device",     "cuda:0",
                                    "--seed",       "1",
                                    "--work",       "w",
                                    "--records-fd", "1"};
  EXPECT_EQ(parse_request(words).judge_device, "cuda:0");
  words.insert(words.end(), {"--judge-device", "cpu"});
  EXPECT_EQ(parse_request(words).judge_device, "cpu");
  words.back() = "cuda:1";
  EXPECT_THROW(parse_request(words), Error);
}

TEST(JudgeDevice, ASubjectOnAGpuIsJudgedByTheCpuAlone) {
  const ScratchFolder folder;
  const ToyPack pack;
  Json cases = toy_cases({"right", "zeroed"});
  for (Json& c : cases) c["axes"] = {{"dtype", "bfloat16"}};
  Tensors outputs;
  for (const std::string name : {"right", "zeroed"}) {
    const Case item{name, CaseRole::kTrigger, {{"dtype", "bfloat16"}}, {"cuda"}};
    for (auto& [tensor, value] : ToyPack::compute(pack.inputs(item, 1)))
      outputs.emplace(name + "/" + tensor, name == "right" ? value : at::zeros_like(value));
  }
  folder.write("outputs.safetensors", tensors_to_bytes(outputs));
  folder.write("subject.json", R"({"package": {"name": "p", "version": "1"}, "versions": {},
    "device": "d", "cases": {"right": {"status": "ok"}, "zeroed": {"status": "ok"}}})");
  const std::string script =
      "cd \"$1\" && grep -q '\"device\":\"cuda:0\"' cases.json && "
      "cp ../outputs.safetensors ../subject.json .";
  const Json command = {{"argv", {"bash", "-c", script, "subject", (folder / "work").string()}},
                        {"timeout_s", 20}};
  const RunResult run = run_toy(
      folder, cases,
      {"--subject", "upstream", "--subject-command", folder.write("command.json", command.dump()),
       "--device", "cuda:0", "--judge-device", "cpu"});
  ASSERT_EQ(run.code, 0);
  // Judged, for no interpreter truncated it.
  EXPECT_EQ(run.of("right").status, CaseStatus::kAbsent) << run.of("right").reason;
  EXPECT_EQ(run.of("right").device, "cuda:0");
  EXPECT_EQ(run.of("zeroed").failure_class, "zeroed");
}

TEST(JudgeDevice, ABuildWithoutCudaRefusesSubjectsOfItsOwnOnAGpu) {
  if (has_cuda_ops()) GTEST_SKIP() << "this build has CUDA";
  const ScratchFolder folder;
  for (const char* judge_device : {"cpu", "cuda:0"}) {
    EXPECT_EQ(run_toy(folder, toy_cases({"one"}),
                      {"--subject", "op", "--device", "cuda:0", "--judge-device", judge_device})
                  .code,
              4);
  }
}

TEST(JudgeDevice, TheCudaHalfIsLoadedFromTheFolderOfTheCpuHalf) {
  EXPECT_EQ(why_not_on("cpu"), "");
  // The locked wheels have every library that it links: it loads, and torch finds no GPU 99.
  EXPECT_EQ(why_not_on("cuda:99"), "torch finds no cuda:99");
}

}  // namespace
}  // namespace patchbench::harness::testing
