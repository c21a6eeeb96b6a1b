#include "harness/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/slug.h"
#include "harness/axes.h"
#include "harness/corrupt.h"
#include "harness/cuda_half.h"
#include "harness/explore.h"
#include "harness/guard_bands.h"
#include "harness/judge.h"
#include "harness/meter.h"
#include "harness/records.h"
#include "harness/regions.h"
#include "harness/request.h"
#include "harness/subject_process.h"

namespace patchbench::harness {
namespace {

constexpr std::size_t kFirstTriggers = 8;
/// Inputs and plain outputs of the cases that one subject process on a GPU is given.
constexpr int64_t kGroupBytes = int64_t{2} << 30;

void check_device(const Request& request) {
  if (request.subject.is_in_process() && request.device != "cpu" && !has_cuda_ops()) {
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("subject '{}' runs in the judge, which was built without CUDA; try "
                            "--device cpu, or the cuda preset",
                            request.subject.text()));
  }
  const std::string why = why_not_on(request.judge_device);
  if (!why.empty())
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("{} cannot be used by this judge: {}", request.judge_device, why));
}

/// `--probe DEVICE`: {"device": where this judge computes for a subject there, "why": why not
/// there, "has_ops": whether subjects of its own run there}.
void print_probe(const std::string& device) {
  const std::string why = why_not_on(device);
  const Json answer = {{"device", why.empty() ? device : "cpu"},
                       {"why", why},
                       {"has_ops", device == "cpu" || has_cuda_ops()}};
  fmt::print("{}\n", answer.dump());
}

/// The subject of this process by its name; Error(kUsage) with did-you-mean.
InProcessSubject find_subject(const Pack& pack, const std::string& name) {
  const std::map<std::string, InProcessSubject> subjects = pack.subjects();
  const auto found = subjects.find(name);
  if (found != subjects.end()) return found->second;
  if (name == "plain")
    return [&pack](const Case& item, const Tensors& inputs) { return pack.plain(item, inputs); };
  std::vector<std::string> names;
  for (const auto& [known, subject] : subjects) names.push_back(known);
  throw Error(ErrorCode::kUsage,
              "no subject '" + name + "' in this reproducer" + did_you_mean(name, names));
}

/// Runs a subject of ours; what it throws is an answer, not the end of the run.
Answer run_in_process(const InProcessSubject& subject, const SubjectCase& wanted,
                      const std::string& device) {
  Tensors inputs;
  for (const auto& [name, tensor] : wanted.inputs)
    inputs.emplace(name, view_on(tensor, at::Device(device)));
  const MemoryMeter meter(device);
  const auto started = std::chrono::steady_clock::now();
  Answer answer;
  try {
    for (auto& [name, tensor] : subject(*wanted.item, inputs))
      answer.outputs.emplace(name, tensor.detach().cpu());
    for (const auto& [name, laid] : wanted.bands)
      answer.bands.emplace(name, bands_around(inputs.at(name), laid.size(1)).cpu());
    answer.state = Answer::State::kOutputs;
  } catch (const UnsupportedCase& e) {
    answer.state = Answer::State::kUnsupported;
    answer.reason = printable(e.what());
  } catch (const ModelRaised& e) {
    answer = Answer::unresolved("raised: " + printable(e.what(), 300));
    answer.self_reported = {{"exception", e.exception()}};
  } catch (const std::exception& e) {
    answer = Answer::unresolved("raised: " + printable(e.what(), 300));
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - started;
  answer.outside = {
      {"wall_s", wall.count()}, {"peak_bytes", meter.peak_bytes()}, {"meter", meter.kind()}};
  return answer;
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

/// One run of a reproducer.
class Run {
 public:
  Run(const Pack& pack, const Request& request)
      : pack_(pack), request_(request), records_(request.records_fd) {
    if (request.subject.is_in_process()) {
      subject_ = find_subject(pack, request.subject.text());
    } else if (!request.command) {
      throw Error(ErrorCode::kUsage,
                  "subject '" + request.subject.text() +
                      "' runs outside of this process: --subject-command is missing");
    }
  }

  /// One process (or none) for all cases but the isolated ones, in groups of bounded size on a GPU.
  /// A CUDA error poisons the context of the cases after it, so on a GPU a case without an answer
  /// gets a process of its own (one that raised has answered); starting one per case from the
  /// beginning costs 5 to 10 s of imports each.
  void all() {
    std::vector<const Case*> chosen;
    for (const Case& item : request_.cases) {
      const std::string why = pack_.refusal(item, request_.device_kind());
      if (why.empty()) {
        chosen.push_back(&item);
      } else {
        refuse(item, why);
      }
    }
    if (request_.wants_regions) open_regions(chosen);
    if (request_.stops_at_red) {
      const auto [first, rest] = cheapest_triggers_and_rest(chosen);
      run(first);
      if (!is_red_) run(rest);
    } else {
      run(chosen);
    }
    if (regions_) close_regions();
    const bool is_drawn = request_.num_drawn > 0 && !request_.spaces.empty();
    if (!is_drawn && request_.given.empty()) return;
    explore(
        pack_, request_,
        [this](const std::vector<SubjectCase>& batch) { return answers_of(batch); }, records_);
  }

 private:
  /// The cheapest triggers that take no other case's inputs, and the rest, both in their order.
  std::pair<std::vector<const Case*>, std::vector<const Case*>> cheapest_triggers_and_rest(
      const std::vector<const Case*>& chosen) const {
    const auto cost_of = [&](const Case* item) {
      double product = 1;
      for (const auto& [name, extent] : pack_.extents(*item))
        product *= static_cast<double>(extent);
      return product;
    };
    std::multimap<double, const Case*> triggers;
    for (const Case* item : chosen)
      if (item->role == CaseRole::kTrigger && !item->axes.contains("scaled_from"))
        triggers.emplace(cost_of(item), item);
    std::set<const Case*> cheapest;
    for (const auto& [cost, item] : triggers)
      if (cheapest.size() < kFirstTriggers) cheapest.insert(item);
    std::pair<std::vector<const Case*>, std::vector<const Case*>> parts;
    for (const Case* item : chosen)
      (cheapest.contains(item) ? parts.first : parts.second).push_back(item);
    return parts;
  }

  void run(const std::vector<const Case*>& chosen) {
    if (subject_) {
      for (const Case* item : chosen) batch({prepare_case(pack_, *item, request_)});
      return;
    }
    std::vector<PreparedCase> group;
    int64_t group_bytes = 0;
    for (const Case* item : chosen) {
      if (item->is_isolated) {
        batch({prepare_case(pack_, *item, request_)});
        continue;
      }
      group.push_back(prepare_case(pack_, *item, request_));
      group_bytes += bytes_of(group.back().inputs) + bytes_of(group.back().plain);
      if (request_.device == "cpu" || group_bytes < kGroupBytes) continue;
      batch(std::exchange(group, {}));
      group_bytes = 0;
    }
    batch(std::move(group));
  }

  /// Mutants are asked for where a case counts for the subject.
  bool has_regions(const Case& item) const {
    const bool is_judged = item.role == CaseRole::kTrigger || item.role == CaseRole::kSilent ||
                           item.role == CaseRole::kControl;
    return is_judged && item.counts_on(request_.device_kind());
  }

  void open_regions(const std::vector<const Case*>& chosen) {
    std::vector<const Case*> judged;
    for (const Case* item : chosen)
      if (has_regions(*item)) judged.push_back(item);
    const auto& waived = request_.waived_regions;
    regions_.emplace(pack_, judged, std::set<std::string>(waived.begin(), waived.end()));
  }

  /// Judges what the mutants make of right outputs; the first case that catches one is written.
  void try_regions(const PreparedCase& one, const Answer& right) {
    for (auto& [region, outputs] : regions_->of(one, right.outputs)) {
      Answer wrong;
      wrong.state = Answer::State::kOutputs;
      wrong.outputs = std::move(outputs);
      wrong.bands = right.bands;
      Request mutated = request_;
      mutated.subject = request_.subject.region_mutant(region);
      Observation observation = judge_case(pack_, one, mutated, 0, std::move(wrong));
      if (observation.status == CaseStatus::kPresent) {
        regions_->caught(region);
        records_.write(observation);
        passed_.erase(region);
      } else {
        passed_.insert_or_assign(region, std::move(observation));
      }
    }
  }

  /// Mutants that passed: by a case that was in the region, or because none was.
  void close_regions() {
    for (const std::string& region : regions_->open()) {
      if (const auto passed = passed_.find(region); passed != passed_.end()) {
        records_.write(passed->second);
        continue;
      }
      Request mutated = request_;
      mutated.subject = request_.subject.region_mutant(region);
      PreparedCase none;
      none.item = first_judged_;
      Answer answer;
      answer.state = Answer::State::kUnsupported;
      answer.reason = "no case is in this region";
      if (first_judged_ != nullptr) records_.write(judge_case(pack_, none, mutated, 0, answer));
    }
  }

  void refuse(const Case& item, const std::string& why) const {
    PreparedCase empty;
    empty.item = &item;
    Answer answer;
    answer.state = Answer::State::kUnsupported;
    answer.reason = why;
    for (int repeat = 0; repeat < request_.repeats; ++repeat) {
      records_.write(judge_case(pack_, empty, request_, repeat, answer));
    }
  }

  void batch(const std::vector<PreparedCase>& prepared) {
    if (prepared.empty()) return;
    std::vector<SubjectCase> handed;
    for (const PreparedCase& one : prepared)
      handed.push_back({one.item, one.inputs, bytes_of(one.plain), one.bands});
    for (int repeat = 0; repeat < request_.repeats; ++repeat) {
      std::map<std::string, Answer> answers = answers_of(handed);
      for (const PreparedCase& one : prepared)
        write(one, repeat, std::move(answers.at(one.item->name)));
    }
  }

  std::map<std::string, Answer> answers_of(const std::vector<SubjectCase>& handed) const {
    if (!subject_) return ask(handed);
    std::map<std::string, Answer> answers;
    for (const SubjectCase& one : handed)
      answers.emplace(one.item->name, run_in_process(subject_, one, request_.device));
    return answers;
  }

  std::map<std::string, Answer> ask(const std::vector<SubjectCase>& handed) const {
    const auto run = [&](const std::vector<SubjectCase>& cases) {
      return run_subject(*request_.command, request_.work, request_.device, cases,
                         request_.watched);
    };
    std::map<std::string, Answer> answers = run(handed);
    if (request_.device == "cpu" || handed.size() == 1) return answers;
    for (const SubjectCase& one : handed) {
      Answer& answer = answers.at(one.item->name);
      const bool has_raised = answer.self_reported.contains("exception");
      if (answer.state == Answer::State::kUnresolved && !has_raised)
        answer = run({one}).at(one.item->name);
    }
    return answers;
  }

  /// Whether another case of the run says that it is this one with a scaled gradient.
  bool is_base(const Case& item) const {
    return std::any_of(request_.cases.begin(), request_.cases.end(), [&](const Case& other) {
      return other.axes.value("scaled_from", "") == item.name;
    });
  }

  /// Null where the case names no base, or the base was not run before it.
  const Related* base_of(const Case& item) const {
    const auto base = related_.find(item.axes.value("scaled_from", ""));
    return base == related_.end() ? nullptr : &base->second;
  }

  /// One observation, or with `--corrupt all` one per corruption, each as a subject of its own.
  void write(const PreparedCase& one, int repeat, Answer answer) {
    if (is_base(*one.item) && answer.state == Answer::State::kOutputs)
      related_.insert_or_assign(one.item->name, Related{answer.outputs, gradient_times(*one.item)});
    if (request_.corruption != kAllCorruptions) {
      const Observation observation =
          judge_case(pack_, one, request_, repeat, answer, base_of(*one.item));
      records_.write(observation);
      is_red_ |=
          observation.role == CaseRole::kTrigger && observation.status == CaseStatus::kPresent;
      if (!regions_ || repeat > 0 || !has_regions(*one.item) ||
          observation.status != CaseStatus::kAbsent)
        return;
      if (first_judged_ == nullptr) first_judged_ = one.item;
      try_regions(one, answer);
      return;
    }
    for (const Corruption& corruption : all_corruptions()) {
      Request spoiled = request_;
      spoiled.subject = "op_mutant:" + corruption.name;
      spoiled.corruption = corruption.name;
      records_.write(judge_case(pack_, one, spoiled, repeat, answer));
    }
  }

  const Pack& pack_;
  const Request& request_;
  RecordWriter records_;
  InProcessSubject subject_;
  std::optional<RegionMutants> regions_;
  std::map<std::string, Observation> passed_;  ///< of the open regions that a case was in
  const Case* first_judged_ = nullptr;
  bool is_red_ = false;                     ///< a trigger was
  std::map<std::string, Related> related_;  ///< by case: what another case is compared with
};

void run_arguments(const std::vector<std::string>& arguments, const Pack& pack) {
  const Request request = parse_request(arguments);
  if (request.lists_corruptions) {
    for (const Corruption& corruption : all_corruptions())
      fmt::print("{}\t{}\n", corruption.name, corruption.what);
    return;
  }
  if (!request.probed_device.empty()) return print_probe(request.probed_device);
  if (request.slug != pack.slug()) {
    throw Error(ErrorCode::kUsage, "the cases are of pack '" + request.slug +
                                       "', this reproduces '" + pack.slug() + "'");
  }
  if (!request.corruption.empty() && request.corruption != kAllCorruptions) {
    // An unknown name must fail before minutes of work, not after.
    Tensors probe;
    corrupt(request.corruption, {}, probe);
  }
  for (const Case& item : request.cases) pack.check(item);
  check_device(request);
  Run(pack, request).all();
}

}  // namespace

int run_reproducer(int argc, const char* const* argv, const Pack& pack) {
  try {
    run_arguments({argv + 1, argv + argc}, pack);
    return 0;
  } catch (const Error& e) {
    std::cerr << "repro_" << pack.slug() << ": " << e.what() << "\n";
    return e.code() == ErrorCode::kUsage ? 2 : e.code() == ErrorCode::kNotRunnable ? 4 : 3;
  } catch (const std::exception& e) {
    std::cerr << "repro_" << pack.slug() << ": " << printable(e.what(), 400) << "\n";
    return 3;
  }
}

}  // namespace patchbench::harness
