#include "core/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/day.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/fields.h"
#include "core/slug.h"

namespace patchbench {
namespace {

constexpr std::string_view kStatementType = "https://in-toto.io/Statement/v1";
constexpr std::string_view kUrn = "urn:patchbench:", kVersion = ":v1";
constexpr std::size_t kMaxObservationBytes = 8 << 10, kMaxRecordBytes = 1 << 20;
const std::vector<std::string> kTypes = {"observation", "plan",        "verdict",
                                         "window",      "measurement", "evict"};

/// What the record is about, in the in-toto sense: the checkout, else the manifest. Derived from
/// the context alone, so it can be checked against it.
Json subjects_of(const RunContext& context) {
  if (context.tree.empty()) {
    return Json::array({{{"name", "packs/" + context.slug + "/manifest.json"},
                         {"digest", {{"sha256", context.manifest_sha256}}}}});
  }
  const std::string name = context.pin.json().value("upstream", "upstream") + "@" +
                           context.pin.json().value("version", "unknown");
  return Json::array({{{"name", name}, {"digest", {{"gitTree", context.tree}}}}});
}

Record make_statement(const std::string& type, const RunContext& context, Json body) {
  body["context"] = context.to_json();
  return {{{"_type", kStatementType},
           {"subject", subjects_of(context)},
           {"predicateType", std::string(kUrn) + type + std::string(kVersion)},
           {"predicate", std::move(body)}}};
}

std::string type_from(const std::string& predicate_type) {
  if (predicate_type.starts_with(kUrn) && predicate_type.ends_with(kVersion)) {
    const std::string type =
        predicate_type.substr(kUrn.size(), predicate_type.size() - kUrn.size() - kVersion.size());
    if (std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end()) return type;
  }
  throw Error(ErrorCode::kUsage,
              "unknown predicateType '" + shown(predicate_type) +
                  "'; a record of a later patchbench needs that version to be read");
}

void require_type(const Record& record, const std::string& type) {
  if (record.type() != type) {
    throw Error(ErrorCode::kUsage,
                fmt::format("a record of type {} stands where a {} should", record.type(), type));
  }
}

void check_observation(FieldReader& fields, const RunContext& context) {
  const Observation observation = Observation::from_json(fields.object("observation"));
  if (observation.slug != context.slug) {
    fields.fail(
        fmt::format("observation of {} in the context of {}", observation.slug, context.slug));
  }
}

void check_verdict_form(FieldReader& fields) {
  const Json& question = fields.object("question");
  if (QuestionContext::from_json(question).to_json() != question)
    fields.fail("\"question\" has an unknown key");
  const std::string sentinel = fields.text("sentinel"), argument = fields.text("argument");
  fields.text("alias");
  fields.text("why");
  if (sentinel != "NONE" && !sentinel.starts_with("NOT_RUN:")) {
    const std::string name = sentinel.substr(0, sentinel.find('('));
    if (sentinel != name + (argument.empty() ? "" : "(" + argument + ")")) {
      fields.fail("\"sentinel\" and \"argument\" do not agree");
    }
  }
  for (const std::string& digest : fields.texts("observations")) {
    if (!is_hex(digest, 64))
      fields.fail("\"observations\" must hold digests of 64 lower-case hex digits");
  }
  if (fields.has("plan") && !is_hex(fields.text("plan"), 64))
    fields.fail("\"plan\" must be a digest of 64 lower-case hex digits");
}

void check_plan_form(const Json& plan) {
  FieldReader whole(plan, "plan");
  const Json& steps = whole.value("steps");
  if (!steps.is_array()) whole.fail("\"steps\" must be a list");
  for (const Json& step : steps) {
    FieldReader fields(step, "plan: step");
    fields.text("subject");
    fields.texts("cases");
  }
}

void check_predicate(const std::string& type, const Json& predicate, const RunContext& context) {
  FieldReader fields(predicate, "predicate");
  fields.object("context");
  if (type == "observation") {
    check_observation(fields, context);
  } else if (type == "verdict") {
    check_verdict_form(fields);
  } else if (type == "plan") {
    check_plan_form(fields.object("plan"));
  } else if (type == "evict") {
    if (!is_hex(fields.text("digest"), 64))
      fields.fail("\"digest\" must be 64 lower-case hex digits");
    if (fields.text("why").empty()) fields.fail("\"why\" must say why");
  } else {
    return;  // window and measurement: the keys of the body are their maker's
  }
  fields.finish();
}

void check_statement(const Json& statement) {
  FieldReader fields(statement, "statement");
  if (fields.text("_type") != kStatementType)
    fields.fail("\"_type\" must be \"" + std::string(kStatementType) + "\"");
  const std::string type = type_from(fields.text("predicateType"));
  const Json& predicate = fields.object("predicate");
  const Json& subjects = fields.value("subject");
  fields.finish();
  const RunContext context =
      RunContext::from_json(FieldReader(predicate, "predicate").object("context"));
  if (subjects != subjects_of(context))
    fields.fail("\"subject\" does not name what the context names");
  check_predicate(type, predicate, context);
}

/// What a sentinel may not pick from.
std::string group_of(const Record& record) {
  const Json& predicate = record.predicate();
  const Json& context = predicate.at("context");
  const Json none = Json::object();
  return canonical_json({context.at("run_id"), predicate.at("observation").at("subject"),
                         context.value("pin", none), context.value("edits", Json::array()),
                         predicate.at("observation").at("device")});
}

[[noreturn]] void broken(const std::string& reason) { throw Error(ErrorCode::kIntegrity, reason); }

/// Every case that a step declares was observed. A step that ends at its first red case, and one
/// whose outputs are spoiled, says by its sentinel's rules what is enough.
void check_asked(const Json& plan, const std::vector<Observation>& witnessed) {
  std::set<std::pair<std::string, std::string>> observed;
  for (const Observation& o : witnessed) observed.insert({o.subject.text(), o.case_name});
  for (const Json& step : plan.at("steps")) {
    if (step.contains("stops_at_red") || step.contains("is_spoiled")) continue;
    const std::string subject = step.at("subject").get<std::string>();
    for (const Json& name : step.at("cases")) {
      if (!observed.contains({subject, name.get<std::string>()}))
        broken(fmt::format("its plan asks for case {} of {}, which no observation is of",
                           name.get<std::string>(), subject));
    }
  }
}

}  // namespace

Json RunContext::to_json() const {
  Json json = {{"run_id", run_id},
               {"started", started},
               {"tool", tool},
               {"slug", slug},
               {"manifest_sha256", manifest_sha256}};
  if (!pin.is_none()) json["pin"] = pin.json();
  if (!tree.empty()) json["tree"] = tree;
  if (!edits.empty()) json["edits"] = edits;
  if (!files.empty()) json["files"] = files;
  if (!environment.empty()) json["environment"] = environment;
  if (!sandbox.is_none()) json["sandbox"] = sandbox.json();
  if (!machine.empty()) json["machine"] = machine;
  return json;
}

RunContext RunContext::from_json(const Json& json) {
  FieldReader fields(json, "context");
  RunContext c;
  c.run_id = fields.text("run_id");
  c.started = fields.text("started");
  c.tool = fields.text("tool");
  c.slug = Slug(fields.text("slug")).str();
  c.manifest_sha256 = fields.text("manifest_sha256");
  c.pin = RunPin(fields.optional_object("pin"));
  c.tree = fields.optional_text("tree");
  if (fields.has("edits")) {
    c.edits = fields.texts("edits");
    if (c.edits.empty()) fields.fail("\"edits\" is empty; leave it out");
  }
  c.files = fields.optional_object("files");
  c.environment = fields.optional_text("environment");
  c.sandbox = RunSandbox(fields.optional_object("sandbox"));
  c.machine = fields.optional_object("machine");
  fields.finish();
  if (!is_hex(c.run_id, 16)) fields.fail("\"run_id\" must be 16 lower-case hex digits");
  if (!is_time(c.started)) fields.fail("\"started\" must be a time like 2026-01-31T12:00:00Z");
  if (!is_hex(c.manifest_sha256, 64))
    fields.fail("\"manifest_sha256\" must be 64 lower-case hex digits");
  if (!c.tree.empty() && !is_hex(c.tree, 40))
    fields.fail("\"tree\" must be 40 lower-case hex digits");
  for (const std::string& edit : c.edits) {
    if (!is_hex(edit, 64)) fields.fail("\"edits\" must hold digests of 64 lower-case hex digits");
  }
  for (const auto& [path, digest] : c.files.items()) {
    if (!digest.is_string() || (digest != "absent" && !is_hex(digest.get<std::string>(), 64))) {
      fields.fail("the digest of file '" + shown(path) +
                  "' must be 64 lower-case hex digits or \"absent\"");
    }
  }
  for (const char* key : {"upstream", "version"}) {
    if (c.pin.json().contains(key) && !c.pin.json().at(key).is_string())
      fields.fail(fmt::format("pin: \"{}\" must be a string", key));
  }
  if (c.sandbox.json().contains("isolated") && !c.sandbox.json().at("isolated").is_boolean()) {
    fields.fail("sandbox: \"isolated\" must be true or false");
  }
  return c;
}

std::string Record::digest() const { return sha256_hex(canonical_json(statement)); }
std::string Record::type() const {
  return type_from(statement.at("predicateType").get<std::string>());
}
const Json& Record::predicate() const { return statement.at("predicate"); }
std::string Record::run_id() const {
  return predicate().at("context").at("run_id").get<std::string>();
}

std::string Record::started() const {
  return predicate().at("context").at("started").get<std::string>();
}

Record make_observation_record(const RunContext& context, const Observation& observation) {
  Record record = make_statement("observation", context, {{"observation", observation.to_json()}});
  const std::string text = canonical_json(record.statement);
  if (text.size() <= kMaxObservationBytes) return record;
  // What a subject says of itself is the one part it can swell; its digest and length keep it
  // accountable.
  const std::string said = canonical_json(observation.self_reported);
  Json& kept = record.statement["predicate"]["observation"]["self_reported"];
  kept = {{"left_out_bytes", said.size()}, {"sha256", sha256_hex(said)}};
  if (observation.self_reported.contains("lines"))
    kept["lines"] = observation.self_reported.at("lines");
  if (observation.self_reported.contains("exception"))
    kept["exception"] = {{"type", observation.self_reported.at("exception").value("type", "")}};
  return record;
}

Record make_verdict_record(const RunContext& context, const QuestionContext& question,
                           const Outcome& outcome,
                           const std::vector<std::string>& observation_digests,
                           const std::string& plan_digest) {
  Json body = {{"question", question.to_json()},
               {"sentinel", outcome.text()},
               {"argument", outcome.argument},
               {"alias", outcome.alias},
               {"why", outcome.why},
               {"observations", observation_digests}};
  if (!plan_digest.empty()) body["plan"] = plan_digest;
  return make_statement("verdict", context, std::move(body));
}

Record make_record(const std::string& type, const RunContext& context, Json predicate) {
  if (type == "observation" || type == "verdict" ||
      std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    throw Error(ErrorCode::kInternal,
                "make_record: no type '" + type + "'; one of: plan, window, measurement, evict");
  }
  if (!predicate.is_object() || predicate.contains("context")) {
    throw Error(ErrorCode::kInternal,
                "make_record: the body must be an object without a key \"context\"");
  }
  return make_statement(type, context, std::move(predicate));
}

Observation observation_of(const Record& record) {
  require_type(record, "observation");
  return Observation::from_json(record.predicate().at("observation"));
}

Outcome outcome_of(const Record& record) {
  require_type(record, "verdict");
  const Json& p = record.predicate();
  Outcome outcome{std::nullopt, p.at("argument").get<std::string>(), p.at("why").get<std::string>(),
                  p.at("alias").get<std::string>()};
  const std::string text = p.at("sentinel").get<std::string>();
  const std::string name = text.substr(0, text.find_first_of("(:"));
  for (int i = 0; i <= static_cast<int>(Sentinel::kNotRun); ++i) {
    if (name == sentinel_name(static_cast<Sentinel>(i)))
      outcome.sentinel = static_cast<Sentinel>(i);
  }
  if (outcome.text() != text)
    throw Error(ErrorCode::kUsage, "'" + shown(text) + "' is no sentinel");
  return outcome;
}

std::vector<std::string> cited_by(const Record& verdict) {
  require_type(verdict, "verdict");
  return verdict.predicate().at("observations").get<std::vector<std::string>>();
}

Record parse_record(std::string_view line, const std::string& where) {
  if (line.size() > kMaxRecordBytes)
    throw Error(ErrorCode::kUsage, where + ": a record may have at most 1 MiB");
  Record record;
  try {
    record.statement = parse_canonical_json(line, "JSON");
    check_statement(record.statement);
    if (record.type() == "verdict") outcome_of(record);
    if (record.type() == "observation" && line.size() > kMaxObservationBytes) {
      throw Error(ErrorCode::kUsage,
                  "an observation record may have at most 8 KiB; keep logs by digest");
    }
  } catch (const Error& e) {
    throw e.in(where);
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::kUsage, where + ": malformed record: " + e.what());
  }
  return record;
}

Witness witness_of(const Record& record) {
  Witness witness{record.run_id(), group_of(record), observation_of(record)};
  Observation& o = witness.observation;
  Json kept = Json::object();
  for (const char* name : {"exception", "lines", "numbers"}) {
    if (o.self_reported.is_object() && o.self_reported.contains(name))
      kept[name] = std::move(o.self_reported[name]);
  }
  o.self_reported = std::move(kept);
  o.outside = Json();
  return witness;
}

void RunWitnesses::add(const Record& record, const std::string& digest) {
  if (record.type() == "observation") observations.insert({digest, witness_of(record)});
  if (record.type() == "plan") plans.insert({digest, record.predicate().at("plan")});
}

void check_verdict(const Record& verdict, const RunWitnesses& run) {
  const std::vector<std::string> cited = cited_by(verdict);
  std::vector<Observation> witnessed;
  std::set<std::string> done, groups;
  for (const std::string& digest : cited) {
    const auto found = run.observations.find(digest);
    if (found == run.observations.end())
      broken("cites observation " + digest + ", which is not there");
    if (!done.insert(digest).second) broken("cites observation " + digest + " twice");
    if (found->second.run_id != verdict.run_id())
      broken("cites observation " + digest + " of another run");
    witnessed.push_back(found->second.observation);
    groups.insert(found->second.group);
  }
  for (const auto& [digest, witness] : run.observations) {
    if (!done.contains(digest) && groups.contains(witness.group)) {
      broken("leaves out observation " + digest + " of the same run and subject");
    }
  }
  const Outcome stated = outcome_of(verdict);
  if (stated.sentinel == Sentinel::kNotRun && cited.empty()) return;
  if (const std::string digest = verdict.predicate().value("plan", ""); !digest.empty()) {
    const auto plan = run.plans.find(digest);
    if (plan == run.plans.end()) broken("cites plan " + digest + ", which is not there");
    check_asked(plan->second, witnessed);
  }
  const Outcome computed =
      sentinel_of(witnessed, QuestionContext::from_json(verdict.predicate().at("question")));
  // `why` is prose and may be worded better by a later version; its meaning may not change.
  if (stated.text() != computed.text() || stated.alias != computed.alias) {
    broken(fmt::format("states {} but its observations give {}{}", stated.text(), computed.text(),
                       computed.why.empty() ? "" : " (" + computed.why + ")"));
  }
}

std::string chain_next(const std::string& previous, const std::string& digest) {
  return sha256_hex((previous.empty() ? std::string(64, '0') : previous) + digest);
}

}  // namespace patchbench
