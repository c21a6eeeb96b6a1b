#include "harness/explore.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "harness/axes.h"
#include "harness/judge.h"
#include "harness/pairs.h"
#include "harness/properties.h"
#include "harness/regions.h"
#include "harness/relations.h"
#include "harness/scenario.h"
#include "harness/space.h"
#include "harness/tally.h"
#include "harness/tensor_file.h"

namespace patchbench::harness {
namespace {

constexpr std::size_t kBatchCases = 60;
constexpr int64_t kBatchBytes = int64_t{1} << 30;
constexpr std::size_t kLevelCases = 30;  ///< of one level of a shrink tree
constexpr int kLevels = 12;              ///< a level is one process or two
constexpr std::size_t kSmallest = 4;     ///< kinds of failure that are made smaller
constexpr uint64_t kCandidates = 8;      ///< a drawn case is the best of these (pairs.h)
constexpr int kKept = 32;  ///< red cases of a space that go into the ledger as they are

/// One drawn case and, once it was judged, what was seen.
struct Drawn {
  std::size_t space = 0;
  uint64_t seed = 0;
  std::size_t index = 0;     ///< chooses the relation
  bool has_relation = true;  ///< whether it is judged by one
  std::unique_ptr<Case> item;
  std::optional<rc::Shrinkable<Json>> tree;
  int64_t num_bytes = 0;  ///< of its inputs
  Observation observation;
};

/// A case with what it is judged by.
struct Prepared {
  Drawn* drawn = nullptr;
  PreparedCase base;
  std::optional<Followers> followers;
  Case handed;  ///< as it is handed over: its name is unique in a batch of several seeds
  int64_t num_bytes = 0;
  std::string why;  ///< why it has no reference
};

int64_t bytes_of(const Tensors& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

/// What kind of failure a red case shows.
std::string kind_of(const Observation& o) {
  if (o.has_raised()) return "raised " + o.self_reported["exception"].value("type", "");
  const Measure* worst = o.failing();
  const bool is_undeclared = o.failure_class == "undeclared" && worst != nullptr;
  return o.failure_class + (is_undeclared ? " " + worst->tensor : "");
}

class Exploration {
 public:
  Exploration(const Pack& pack, const Request& request, const AnswerBatch& answers,
              const RecordWriter& records, const ReferenceBatch& references)
      : pack_(pack),
        request_(request),
        answers_(answers),
        records_(records),
        references_(references) {
    for (const Json& body : request.spaces) {
      spaces_.emplace_back(body);
      // What Triton's interpreter stores in bf16 is truncated and not judged.
      if (request.device == "cpu" && !request.subject.is_in_process() &&
          !pack.rounds_all_bf16_on_cpu())
        spaces_.back().leave_out("dtype", "bfloat16");
    }
  }

  void all() {
    for (const Json& axes : request_.given) {
      Drawn one = made(0, request_.seed, drawn_.size(), axes);
      drawn_.push_back(std::make_unique<Drawn>(std::move(one)));
    }
    if (request_.given.empty()) draw();
    if (request_.wants_regions) open_regions();
    std::vector<Drawn*> every;
    for (const auto& one : drawn_) every.push_back(one.get());
    judge(every, Purpose::kDrawn);
    if (!request_.given.empty()) return;
    make_smaller();
    for (std::size_t space = 0; space < spaces_.size(); ++space) summarise(space);
  }

 private:
  enum class Purpose { kDrawn, kSmaller };

  /// Every other case is in a scenario, each in its turn. A subject of this process is one call.
  Json with_scenario(Json axes, uint64_t seed) const {
    const auto& names = request_.scenarios;
    const std::size_t at = drawn_.size();
    if (!names.empty() && !request_.subject.is_in_process() && at % 2 == 1)
      axes.emplace("scenario", names[(seed + at / 2) % names.size()]);
    return axes;
  }

  static std::unique_ptr<Case> case_of(const Json& axes) {
    Case item{};
    item.name = drawn_name(axes);
    item.role = CaseRole::kDrawn;
    item.axes = axes;
    item.judged_on = {"cpu", "cuda"};
    return std::make_unique<Case>(std::move(item));
  }

  static Drawn made(std::size_t space, uint64_t seed, std::size_t index, const Json& axes) {
    Drawn one;
    one.space = space;
    one.seed = seed;
    one.index = index;
    one.item = case_of(axes);
    return one;
  }

  /// Whether the pack takes such a case on this device.
  bool is_legal(const Json& axes) const {
    const auto item = case_of(axes);
    // What is summed leaves the range of float16, 6e-8 to 65504, with factors beyond these.
    constexpr double kMostHalf = 256;
    if (axes.value("dtype", "") == "float16" && axes.contains("gradient_times") &&
        std::abs(std::log2(gradient_times(*item))) > std::log2(kMostHalf))
      return false;
    try {
      pack_.check(*item);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUsage) throw;
      refused_ = e.what();
      return false;
    }
    return pack_.refusal(*item, request_.device_kind()).empty();
  }

  rc::Shrinkable<Json> tree_of(std::size_t space, const Json& axes) const {
    return spaces_[space].tree(axes, [this](const Json& other) { return is_legal(other); });
  }

  void draw() {
    int total = 0;
    for (const Json& body : request_.spaces) total += body.value("count", 1);
    for (uint64_t seed = request_.first_seed; seed <= request_.last_seed; ++seed) {
      std::set<std::string> names;
      int before = 0;
      for (std::size_t space = 0; space < spaces_.size(); ++space) {
        PairCoverage pairs;
        // Shares of the whole that add up to it.
        const int upto = before + request_.spaces[space].value("count", 1);
        const int num = request_.num_drawn * upto / total - request_.num_drawn * before / total;
        before = upto;
        for (int i = 0; i < num; ++i) draw_one(space, seed, i, names, pairs);
        tallies_[space].asked += num;
      }
    }
  }

  void draw_one(std::size_t space, uint64_t seed, int index, std::set<std::string>& names,
                PairCoverage& pairs) {
    const auto is_legal_here = [this](const Json& axes) { return is_legal(axes); };
    std::optional<rc::Shrinkable<Json>> best;
    double most = 0;
    try {
      for (uint64_t i = 0; i < kCandidates; ++i) {
        auto tree = spaces_[space].draw(seed, static_cast<uint64_t>(index) * kCandidates + i,
                                        is_legal_here);
        const Json axes = tree.value();
        const double weight = pairs.weight_of_new(axes);
        if (names.contains(drawn_name(axes)) || (best && weight <= most)) continue;
        best = std::move(tree);
        most = weight;
      }
    } catch (const Error& e) {
      throw Error(e.code(), e.what() + (refused_.empty() ? "" : "; the last: " + refused_));
    }
    // A space of few values repeats itself.
    if (!best) {
      ++tallies_[space].same;
      return;
    }
    pairs.take(best->value());
    names.insert(drawn_name(best->value()));
    Drawn one = made(space, seed, drawn_.size(), with_scenario(best->value(), seed));
    one.tree = tree_of(space, one.item->axes);
    drawn_.push_back(std::make_unique<Drawn>(std::move(one)));
  }

  void open_regions() {
    std::vector<const Case*> cases;
    for (const auto& one : drawn_) cases.push_back(one->item.get());
    const auto& waived = request_.waived_regions;
    regions_.emplace(
        pack_, cases, std::set<std::string>(waived.begin(), waived.end()),
        RegionMutants::Cases::kDrawn,
        std::vector<Condition>(request_.conditions.begin(), request_.conditions.end()));
  }

  Request request_of(uint64_t seed) const {
    Request request = request_;
    request.seed = seed;
    request.corruption.clear();
    return request;
  }

  /// The inputs of a case and of those that its relation makes of it.
  Prepared prepare(Drawn& one) const {
    const Request request = request_of(one.seed);
    Prepared prepared;
    prepared.drawn = &one;
    prepared.base.item = one.item.get();
    prepared.base.inputs = inputs_of(pack_, *one.item, one.seed);
    prepared.base.inputs_sha256 = digest_of(prepared.base.inputs);
    prepared.handed = *one.item;
    prepared.handed.name += fmt::format("_{}", one.seed);
    const Json relations =
        one.space < spaces_.size() ? spaces_[one.space].relations() : Json::array();
    const bool is_alone = scenario_of(*one.item).empty();
    const std::size_t num_relations = one.has_relation && is_alone ? relations.size() : 0;
    for (std::size_t i = 0; i < num_relations && !prepared.followers; ++i) {
      const Json& relation = relations[(one.index + i) % relations.size()];
      prepared.followers = followers_of(Relation::from_json(relation), prepared.base, request);
    }
    if (prepared.followers)
      for (Case& item : prepared.followers->cases) item.name += fmt::format("_{}", one.seed);
    prepared.num_bytes = bytes_of(prepared.base.inputs);
    if (references_) return prepared;
    prepared.base.oracle = pack_.oracle(*one.item, prepared.base.inputs);
    prepared.base.plain = plain_of(pack_, *one.item, prepared.base.inputs, request);
    prepared.num_bytes += 2 * bytes_of(prepared.base.oracle);
    if (prepared.followers && !is_finite(prepared.base)) prepared.followers.reset();
    if (!prepared.followers) return prepared;
    Followers& followers = *prepared.followers;
    for (std::size_t i = 0; i < followers.cases.size(); ++i)
      followers.plain.push_back(plain_of(pack_, followers.cases[i], followers.inputs[i], request));
    return prepared;
  }

  /// What is right for the cases of a batch, where that comes from outside.
  void refer(std::vector<Prepared>& batch) const {
    std::map<std::string, Reference> references = references_(handed_of(batch));
    for (Prepared& one : batch) {
      Reference& reference = references.at(one.handed.name);
      one.why = reference.why;
      one.base.oracle = std::move(reference.oracle);
      one.base.plain = std::move(reference.plain);
      if (!one.followers) continue;
      for (const Case& item : one.followers->cases) {
        Reference& other = references.at(item.name);
        if (!other.why.empty()) {
          one.followers.reset();
          break;
        }
        one.followers->plain.push_back(std::move(other.plain));
      }
    }
  }

  static std::vector<SubjectCase> handed_of(const std::vector<Prepared>& batch) {
    std::vector<SubjectCase> handed;
    for (const Prepared& one : batch) {
      if (!one.why.empty()) continue;
      handed.push_back({&one.handed, one.base.inputs, bytes_of(one.base.plain)});
      if (!one.followers) continue;
      const Followers& followers = *one.followers;
      for (std::size_t i = 0; i < followers.cases.size(); ++i)
        handed.push_back({&followers.cases[i], followers.inputs[i],
                          i < followers.plain.size() ? bytes_of(followers.plain[i]) : 0});
    }
    return handed;
  }

  bool is_late() const {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - started_;
    return request_.most_seconds > 0 && since.count() > request_.most_seconds;
  }

  /// Each case judged, in batches, as far as the time reaches; without an answer its `seen` is as
  /// it was made.
  void judge(const std::vector<Drawn*>& cases, Purpose purpose) {
    std::vector<Prepared> batch;
    std::set<std::string> names;  // of a batch: two red cases may be made smaller to the same one
    int64_t num_bytes = 0;
    const auto flush = [&] {
      judge_batch(batch, purpose);
      batch.clear();
      names.clear();
      num_bytes = 0;
    };
    const std::size_t most = request_.subject.is_in_process() ? 1 : kBatchCases;
    for (Drawn* one : cases) {
      if (is_late()) break;
      Prepared next = prepare(*one);
      if (names.contains(next.handed.name)) flush();
      names.insert(next.handed.name);
      num_bytes += next.num_bytes;
      batch.push_back(std::move(next));
      if (batch.size() >= most || num_bytes > kBatchBytes) flush();
    }
    if (!batch.empty() && !is_late()) flush();
  }

  void judge_batch(std::vector<Prepared>& batch, Purpose purpose) {
    if (references_) refer(batch);
    const std::vector<SubjectCase> handed = handed_of(batch);
    const auto asked_at = std::chrono::steady_clock::now();
    const std::map<std::string, Answer> answers = answers_(handed);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - asked_at;
    for (const Prepared& one : batch)
      tallies_[one.drawn->space].seconds += took.count() / static_cast<double>(batch.size());
    for (const Prepared& one : batch) {
      const auto found = answers.find(one.handed.name);
      const Answer answer = found == answers.end() ? Answer::unresolved(one.why) : found->second;
      Observation& observation = one.drawn->observation;
      one.drawn->num_bytes = bytes_of(one.base.inputs);
      observation = judge_case(pack_, one.base, request_of(one.drawn->seed), 0, answer, nullptr,
                               layers_of(one, answer, answers));
      if (!one.why.empty()) observation.status = CaseStatus::kUnjudged;
      const bool is_given = !request_.given.empty();
      observation.drawn = {{"space", is_given ? "given" : spaces_[one.drawn->space].name()},
                           {"axes", one.drawn->item->axes},
                           {"properties", properties_of(*one.drawn->item, one.base.inputs)}};
      if (is_given) observation.drawn["kept"] = true;
      if (purpose == Purpose::kDrawn) count(*one.drawn);
      if (purpose == Purpose::kSmaller) observation.drawn["smaller"] = true;
      records_.write(observation);
      if (purpose == Purpose::kDrawn && regions_ && observation.status == CaseStatus::kAbsent)
        try_regions(one, answer);
    }
  }

  /// The layers of the case's relation; one that fails where a follower has no outputs.
  std::vector<Measure> layers_of(const Prepared& one, const Answer& answer,
                                 const std::map<std::string, Answer>& answers) const {
    if (!one.followers || answer.state != Answer::State::kOutputs) return {};
    std::vector<Tensors> got;
    for (const Case& item : one.followers->cases) {
      const Answer& other = answers.at(item.name);
      if (other.state == Answer::State::kUnsupported) return {};
      if (other.state != Answer::State::kOutputs)
        return {{"all", one.followers->relation.name, 1, 0, 0, false, other.reason.substr(0, 80)}};
      got.push_back(other.outputs);
    }
    for (const auto& [name, plain] : one.base.plain) {
      const auto lacks = [&, name = name](const Tensors& outputs) {
        return !outputs.contains(name);
      };
      if (lacks(answer.outputs) || std::any_of(got.begin(), got.end(), lacks)) return {};
    }
    return relation_layers(pack_, *one.followers, one.base, answer.outputs, got);
  }

  void count(Drawn& one) {
    Tally& tally = tallies_[one.space];
    tally.count(one.observation);
    const bool is_kept = one.observation.is_wrong() && tally.num_red() <= kKept;
    if (is_kept && request_.subject != SubjectKind::kUpstream) one.observation.drawn["kept"] = true;
  }

  void try_regions(const Prepared& one, const Answer& right) {
    for (auto& [region, outputs] : regions_->of(one.base, right.outputs)) {
      Answer wrong;
      wrong.state = Answer::State::kOutputs;
      wrong.outputs = std::move(outputs);
      Request mutated = request_of(one.drawn->seed);
      mutated.subject = request_.subject.region_mutant(region);
      ++tries_[region];
      if (judge_case(pack_, one.base, mutated, 0, std::move(wrong)).status != CaseStatus::kPresent)
        continue;
      regions_->caught(region);
      caught_[region] = tries_.at(region);
    }
  }

  /// A red case that is made smaller, the smallest so far.
  struct Smaller {
    Drawn best;
    std::string kind;
    std::vector<Drawn> children;
    std::vector<Drawn*> red;  ///< of `children`, those that show `kind`
    std::optional<Drawn> together;
    bool is_done = false;

    bool shows_it(const Drawn& child) const {
      return child.observation.is_wrong() && kind_of(child.observation) == kind;
    }
  };

  /// Whether a red case is wrong by its relation alone. Smaller cases of another need no relation,
  /// whose further cases are most of the work.
  bool fails_by_relation(const Drawn& red) const {
    const Measure* failing = red.observation.failing();
    if (failing == nullptr) return false;
    const Json relations = spaces_[red.space].relations();
    return std::any_of(relations.begin(), relations.end(),
                       [&](const Json& relation) { return relation.at("name") == failing->layer; });
  }

  /// Of each kind of failure the smallest case that the tree has.
  void make_smaller() {
    std::vector<Smaller> all;
    std::set<std::string> kinds;
    for (const auto& drawn : drawn_) {
      const Drawn& red = *drawn;
      if (!red.observation.is_wrong() || kinds.size() == kSmallest) continue;
      if (!kinds.insert(kind_of(red.observation)).second) continue;
      Smaller smaller{made(red.space, red.seed, red.index, red.item->axes),
                      kind_of(red.observation)};
      smaller.best.tree = red.tree;
      smaller.best.has_relation = fails_by_relation(red);
      smaller.best.observation = red.observation;
      all.push_back(std::move(smaller));
    }
    for (int level = 0; level < kLevels && !is_late(); ++level) step(all, level);
    for (Smaller& one : all) {
      one.best.observation.drawn.erase("smaller");
      one.best.observation.drawn["kept"] = one.best.observation.drawn["shrunk"] = true;
      records_.write(one.best.observation);
    }
  }

  /// One level of each tree, all in one batch; then, of each, all steps that kept the failure,
  /// together. Where that loses it, the child with the least to compute.
  void step(std::vector<Smaller>& all, int level) {
    std::vector<Drawn*> batch;
    for (Smaller& one : all) {
      one.children.clear();
      if (one.is_done) continue;
      // Sizes first: what is tried after them costs less.
      one.children = children_of(one.best, level == 0 ? Steps::kSizes : Steps::kAll);
      for (Drawn& child : one.children) batch.push_back(&child);
    }
    judge(batch, Purpose::kSmaller);
    batch.clear();
    for (Smaller& one : all) {
      one.red.clear();
      one.together.reset();
      for (Drawn& child : one.children)
        if (one.shows_it(child)) one.red.push_back(&child);
      if (one.red.empty() && level > 0) one.is_done = true;
      one.together = joined(one);
      if (one.together) batch.push_back(&*one.together);
    }
    judge(batch, Purpose::kSmaller);
    for (Smaller& one : all) {
      if (one.together && one.shows_it(*one.together))
        one.best = std::move(*one.together);
      else if (!one.red.empty())
        one.best = std::move(**std::min_element(
            one.red.begin(), one.red.end(),
            [](const Drawn* a, const Drawn* b) { return a->num_bytes < b->num_bytes; }));
    }
  }

  enum class Steps { kSizes, kAll };
  std::vector<Drawn> children_of(const Drawn& parent, Steps steps) const {
    std::vector<Drawn> children;
    std::set<std::string> names;  // two steps may lead to one case: a batch holds it once
    if (steps == Steps::kAll && !scenario_of(*parent.item).empty()) {
      Json axes = parent.item->axes;
      axes.erase("scenario");
      children.push_back(made(parent.space, parent.seed, parent.index, axes));
      children.back().tree = tree_of(parent.space, axes);
    }
    auto next = parent.tree->shrinks();
    for (auto child = next.next(); child && children.size() < kLevelCases; child = next.next()) {
      const bool is_of_sizes =
          spaces_[parent.space].differ_in_sizes(parent.item->axes, child->value());
      if (steps == Steps::kSizes && !is_of_sizes) continue;
      Drawn one = made(parent.space, parent.seed, parent.index, child->value());
      one.tree = *child;
      one.has_relation = parent.has_relation;
      if (names.insert(one.item->name).second) children.push_back(std::move(one));
    }
    return children;
  }

  /// The case with all steps that kept the failure.
  std::optional<Drawn> joined(const Smaller& one) const {
    const Drawn& parent = one.best;
    std::vector<Json> steps;
    for (const Drawn* child : one.red) steps.push_back(child->item->axes);
    if (steps.size() < 2) return std::nullopt;
    const Json axes = spaces_[parent.space].joined(parent.item->axes, steps);
    if (!is_legal(axes)) return std::nullopt;
    Drawn next = made(parent.space, parent.seed, parent.index, axes);
    next.has_relation = parent.has_relation;
    next.tree = tree_of(parent.space, axes);
    return next;
  }

  void summarise(std::size_t space) {
    Observation summary;
    summary.slug = request_.slug;
    summary.subject = request_.subject;
    summary.case_name = "drawn_from_" + spaces_[space].name();
    summary.role = CaseRole::kDrawn;
    summary.device = request_.device;
    summary.seed = request_.first_seed;
    summary.drawn = {{"space", spaces_[space].name()},
                     {"seeds", {request_.first_seed, request_.last_seed}}};
    tallies_[space].summarise(summary);
    if (regions_ && space == 0) {
      summary.drawn["regions"] = caught_;
      Json open = Json::object();
      for (const std::string& region : regions_->open()) open[region] = tries_[region];
      summary.drawn["regions_open"] = std::move(open);
    }
    records_.write(summary);
  }

  const Pack& pack_;
  const Request& request_;
  const AnswerBatch& answers_;
  const RecordWriter& records_;
  const ReferenceBatch& references_;
  std::vector<Space> spaces_;
  std::vector<std::unique_ptr<Drawn>> drawn_;
  std::optional<RegionMutants> regions_;
  std::map<std::string, int> tries_, caught_;  ///< region -> cases in it that were asked
  std::map<std::size_t, Tally> tallies_;       ///< by space
  mutable std::string refused_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace

void explore(const Pack& pack, const Request& request, const AnswerBatch& answers,
             const RecordWriter& records, const ReferenceBatch& references) {
  Exploration(pack, request, answers, records, references).all();
}

}  // namespace patchbench::harness
