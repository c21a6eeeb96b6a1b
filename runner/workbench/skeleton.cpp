#include "workbench/skeleton.h"

#include <string_view>

#include "core/json.h"

namespace patchbench {
namespace {

constexpr std::string_view kReadme = R"(# @TITLE@

**You are hit if** you call what, under which condition; and what goes wrong then.

**Not hit:** who uses the same release and does not meet it.

## Bug

What a user sees, on which versions, and with which numbers.

## Cause

The upstream file and symbol, and why it is wrong.

## Fix

What the edits change, and what they leave alone.

## Limits

What was not run, and what the edits and the op do not take. Claims are the manifest's scope rows.

## Retirement

The measurable state of upstream in which this pack is deleted.
)";

constexpr std::string_view kReproducer = R"--(#include "core/error.h"
@INCLUDES@#include "harness/program.h"

namespace patchbench {
namespace {

using harness::Tensors;

[[noreturn]] void unwritten(const char* what) {
  throw Error(ErrorCode::kInternal, std::string("repro/@SLUG@/repro.cpp: write ") + what);
}

class Reproducer : public harness::Pack {
 public:
  std::string slug() const override { return "@SLUG@"; }

  void check(const Case& item) const override {
@CHECK@  }

@DTYPE@

@INPUTS@

  Tensors oracle(const Case&, const Tensors&) const override { unwritten("the fp64 oracle()"); }

  Tensors plain(const Case&, const Tensors&) const override {
    unwritten("plain(), the same-dtype torch computation");
  }

  harness::Tolerances tolerances(const Case&, const std::string&) const override {
    unwritten("tolerances() with the reason of each");
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override { return {}; }

  std::string classify(const Case&, const harness::Judgement&) const override {
    unwritten("classify(), a predicate on numbers");
  }
};

}  // namespace
}  // namespace patchbench

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv, patchbench::Reproducer());
}
)--";

constexpr std::string_view kSubject =
    R"--("""Calls the installed upstream for the cases of @SLUG@."""

from __future__ import annotations

import torch
from subject_runtime import Case

PACKAGE = "@PACKAGE@"


def run(case: Case) -> dict[str, torch.Tensor]:
    """The outputs that the oracle has, from the real upstream."""
    raise NotImplementedError("repro/@SLUG@/subject.py: call the upstream on case.tensors")
)--";

constexpr std::string_view kStandalone = R"--("""@TITLE@

Needs: @REQUIREMENT@. Exit: 0 right, 1 wrong, 2 cannot say.
"""

import sys

try:
    import @PACKAGE@
except ImportError as error:
    print(f"cannot say: {error}; pip install @REQUIREMENT@", file=sys.stderr)
    sys.exit(2)

raise NotImplementedError(f"repro/@SLUG@/standalone.py: show the bug with {@PACKAGE@.__name__} alone")
)--";

constexpr std::string_view kTest = R"--(#include <gtest/gtest.h>

TEST(@CAMEL@, OpAgreesWithTheOracleAndItsMutantsDoNot) {
  FAIL() << "tests/packs/@SLUG@_test.cpp: compare the op with the oracle, and spoil it";
}
)--";

std::string filled(std::string_view text, const std::map<std::string, std::string>& words) {
  std::string out(text);
  for (const auto& [mark, word] : words) {
    for (size_t at = out.find(mark); at != std::string::npos;
         at = out.find(mark, at + word.size())) {
      out.replace(at, mark.size(), word);
    }
  }
  return out;
}

std::string camel(const std::string& slug) {
  std::string out;
  bool is_start = true;
  for (const char c : slug) {
    if (c != '_') out += is_start && c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c;
    is_start = c == '_';
  }
  return out;
}

Json waivers() {
  Json out = Json::array();
  for (const auto& [cell, reason] : std::map<std::string, std::string>{
           {"mitigations", "no mitigation is written yet"},
           {"op", "no corrected op is written yet"},
           {"patches", "no edit is saved yet: patchbench patch new"},
           {"reports", "no record is exported yet: patchbench ledger export"}}) {
    out.push_back({{"cell", cell}, {"reason", reason}});
  }
  return out;
}

constexpr std::string_view kCheck =
    R"--(    for (const auto& [axis, value] : item.axes.items()) {
      if (axis != "dtype") throw Error(ErrorCode::kUsage, item.name + ": unknown axis " + axis);
    }
)--";
constexpr std::string_view kDtype =
    R"--(  at::ScalarType dtype(const Case&) const override { return at::kFloat; })--";
constexpr std::string_view kInputs =
    R"--(  Tensors inputs(const Case&, uint64_t) const override {
    unwritten("inputs() that can see the bug");
  })--";

/// The reproducer, with the inputs that a search drew where there was one.
std::string reproducer_of(const NewPack& pack) {
  if (!pack.found)
    return filled(kReproducer, {{"@INCLUDES@", ""},
                                {"@CHECK@", std::string(kCheck)},
                                {"@DTYPE@", std::string(kDtype)},
                                {"@INPUTS@", std::string(kInputs)}});
  const DrawnSource source = source_of(pack.found->plan);
  return filled(
      kReproducer,
      {{"@INCLUDES@", "#include \"harness/axes.h\"\n"},
       {"@CHECK@", source.check},
       {"@DTYPE@",
        "  at::ScalarType dtype(const Case& item) const override {\n" + source.dtype + "  }"},
       {"@INPUTS@", "  Tensors inputs(const Case& item, uint64_t seed) const override {\n" +
                        source.inputs + "  }"}});
}

/// The text of a manifest.
std::string with_one_case_a_line(nlohmann::ordered_json manifest) {
  std::string rows;
  for (const auto& item : manifest["cases"]) rows += (rows.empty() ? "" : ",\n    ") + item.dump();
  const std::string place = "\"cases\": []";
  manifest["cases"] = nlohmann::ordered_json::array();
  std::string text = manifest.dump(2) + "\n";
  return text.replace(text.find(place), place.size(), "\"cases\": [\n    " + rows + "\n  ]");
}

/// Keys in the order of the schema, which is the order in which a person reads them.
std::string manifest_text(const NewPack& pack, const std::string& review_on) {
  nlohmann::ordered_json out = {{"slug", pack.slug.str()},
                                {"number", pack.number},
                                {"title", pack.title},
                                {"kind", pack.kind}};
  for (const UpstreamUse& use : pack.upstreams) {
    out["upstreams"].push_back(
        {{"name", use.name}, {"red_pin", use.red_pin}, {"files", use.files}});
  }
  out["classes"] = {{{"name", "wrong_result"}, {"meaning", pack.title}}};
  out["cases"] = {{{"name", "fp32"},
                   {"role", "trigger"},
                   {"axes", {{"dtype", "float32"}}},
                   {"judged_on", {"cpu", "cuda"}}}};
  std::vector<std::string> scope = {"fp32"};
  if (pack.found) {
    out["cases"] = nlohmann::ordered_json::array();
    for (const Json& one : pack.found->cases)
      out["cases"].push_back({{"name", one.at("name")},
                              {"role", one.at("role")},
                              {"axes", one.at("axes")},
                              {"judged_on", one.at("judged_on")}});
    out["explore"] = {{"seconds", pack.found->seconds}, {"spaces", {pack.found->space}}};
    scope.clear();
    for (const Json& one : pack.found->cases)
      if (one.at("role") == "trigger") scope.push_back(one.at("name"));
  }
  out["subjects"] = {"upstream"};
  out["scope"] = {{{"claim", pack.title},
                   {"of", "ours"},
                   {"architecture", "any"},
                   {"verdict", "held"},
                   {"cases", scope}}};
  out["waivers"] = waivers();
  out["mitigation"] = {{"modes", {"exact"}},
                       {"needs", Json::array()},
                       {"exactness", "no mitigation is written yet"}};
  out["filing"] = {{"kind", "held"},
                   {"repositories", {pack.repository}},
                   {"thread", ""},
                   {"group", ""},
                   {"order", 0},
                   {"depends_on", Json::array()},
                   {"risk", "not known before the first record"}};
  out["lifecycle"] = {{"admission", "owed: what shows that it matters at a real shape"},
                      {"catalog",
                       {{"surface", "owed"},
                        {"family", "owed"},
                        {"backend_contract", "owed"},
                        {"role", "deferred"}}},
                      {"keep", "conditional"},
                      {"retire_when", "the newest release of the upstream is right"},
                      {"review_on", review_on}};
  return with_one_case_a_line(out);
}

}  // namespace

std::map<std::string, std::string> skeleton_of(const NewPack& pack, const std::string& review_on) {
  const UpstreamUse& upstream = pack.upstreams.at(0);
  const std::string& file = upstream.files.at(0);
  const std::map<std::string, std::string> words = {
      {"@TITLE@", pack.title},
      {"@SLUG@", pack.slug.str()},
      {"@PACKAGE@", file.substr(0, file.find('/'))},
      {"@REQUIREMENT@", upstream.name + "==" + upstream.red_pin},
      {"@CAMEL@", camel(pack.slug.str())}};
  const std::string folder = cell_path(pack.slug, Column::kPack),
                    repro = cell_path(pack.slug, Column::kRepro);
  return {{folder + "/manifest.json", manifest_text(pack, review_on)},
          {folder + "/README.md", filled(kReadme, words)},
          {repro + "/repro.cpp", filled(reproducer_of(pack), words)},
          {repro + "/subject.py", filled(kSubject, words)},
          {repro + "/standalone.py", filled(kStandalone, words)},
          {cell_path(pack.slug, Column::kTest), filled(kTest, words)}};
}

}  // namespace patchbench
