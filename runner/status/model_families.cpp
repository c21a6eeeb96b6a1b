#include "status/model_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/file_text.h"

namespace patchbench {
namespace {

/// A row of the table; null where the model class was not measured in the release.
const Json* family_row(const Json& table, const std::string& release, const std::string& model) {
  for (const Json& row : table.at("rows"))
    if (row.at("release") == release && row.at("family") == model) return &row;
  return nullptr;
}

bool has_class(const Json& row, const std::string& name) {
  const Json& classes = row.at("classes");
  return std::find(classes.begin(), classes.end(), name) != classes.end();
}

/// The models that were read, asked about one answer.
class ModelFamilies {
 public:
  ModelFamilies(ScanReport& report, const ScanAnswer& answer, const Json& table)
      : report_(report), answer_(answer), table_(table) {
    for (const ModelConfig& one : report.models) {
      if (one.is_named && named_ == nullptr) named_ = &one;
      for (const std::string& model : one.classes)
        if (family_row(table, answer.version, model) == nullptr) unmeasured_ = &one;
      if (one.classes.empty()) unmeasured_ = &one;
    }
  }

  void apply(ScanClass& row) {
    bool is_clear = named_ != nullptr && unmeasured_ == nullptr && report_.other_losses.empty();
    for (const ModelConfig& one : report_.models) {
      for (const std::string& model : one.classes) {
        const Json* measured = family_row(table_, answer_.version, model);
        if (measured == nullptr) continue;
        is_clear &= !has_class(*measured, "unexplained") && !has_class(*measured, row.name);
        if (!has_class(*measured, row.name)) continue;
        row.size = fmt::format(
            "{} ({}): the gradient of a step of rows of 30, 2, 5 and 12 tokens, each a "
            "micro-batch, is off by {} of its length in {}",
            model, one.place, measured->at("off").dump(), answer_.version);
        row.size_record = answer_.slug + "/families.json";
      }
    }
    if (!is_clear) return;
    report_.ruled_out.push_back({.slug = answer_.slug,
                                 .failure_class = row.name,
                                 .place = named_->place + ": " + named_->classes.front(),
                                 .upstreams = {answer_.upstream},
                                 .release = answer_.version});
  }

  /// Why a file that was named rules nothing out; nothing where it does, or where a class is wrong.
  void add_note() {
    if (named_ == nullptr) return;
    if (unmeasured_ != nullptr)
      report_.notes.push_back(
          fmt::format("{}: {} with {} {}: its answers stay open", unmeasured_->place,
                      unmeasured_->classes.empty() ? "a model class that is not known"
                                                   : "a model class that was not measured",
                      answer_.package, answer_.version));
    else if (!report_.other_losses.empty())
      report_.notes.push_back(
          fmt::format("{}: the model class of {} was not measured with it: its answers stay open",
                      report_.other_losses.front(), named_->place));
  }

 private:
  ScanReport& report_;
  const ScanAnswer& answer_;
  const Json& table_;
  const ModelConfig* named_ = nullptr;
  const ModelConfig* unmeasured_ = nullptr;
};

}  // namespace

void apply_model_families(ScanReport& report, const std::filesystem::path& evidence) {
  if (report.models.empty()) return;
  std::map<std::string, Json> tables;
  for (ScanAnswer& one : report.answers) {
    if (one.state != ScanState::kHit || !one.is_release()) continue;
    const auto [at, is_new] = tables.try_emplace(one.slug);
    const std::filesystem::path file = evidence / one.slug / "families.json";
    if (is_new) at->second = parse_json(file_text(file).value_or("{}"), file.string());
    if (at->second.value("upstream", "") != one.upstream) continue;
    ModelFamilies families(report, one, at->second);
    for (ScanClass& row : one.classes) families.apply(row);
    families.add_note();
  }
}

}  // namespace patchbench
