#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/manifest.h"
#include "core/package_list.h"
#include "status/upstream_threads.h"
#include "status/verdict_table.h"

namespace patchbench {

/// The OSV records (report/osv.h) of packs by their id, one a pack and upstream with a bad release,
/// as the verdict table has them. A release that has harmless classes alone is neither bad nor
/// right, as `scan` says.
std::map<std::string, Json> osv_records(const std::vector<Manifest>& packs,
                                        const VerdictTable& table,
                                        const std::vector<Thread>& threads);

/// What an HTTP request is answered with.
struct OsvAnswer {
  int status = 200;
  Json body = Json::object();
  std::vector<std::string> unknown;  ///< "thing 9.9", of which a pack cannot say whether it is hit
};

/// Answers the query API of OSV from the verdict table. A version has the records of the packs of
/// which `scan` says that it is a hit, or one with a package of which the query says nothing; a
/// package without a version has all of its records. A version that was not measured has none: OSV
/// has no word for it, so that `unknown` names it.
class OsvFeed {
 public:
  OsvFeed(std::vector<Manifest> packs, VerdictTable table, const std::vector<Thread>& threads);
  /// POST /v1/query, POST /v1/querybatch, GET /v1/vulns/ID. 400, 404 and 405 have `code` and
  /// `message`, as OSV has them.
  OsvAnswer answer(const std::string& method, const std::string& path, std::string_view body) const;

 private:
  Json records_for(const Json& query, std::vector<std::string>& unknown) const;
  Json records_of(const std::string& package, const Listed& listed,
                  std::vector<std::string>& unknown) const;
  OsvAnswer batch(const Json& document) const;

  std::vector<Manifest> packs_;
  VerdictTable table_;
  std::map<std::string, Json> records_;
};

}  // namespace patchbench
