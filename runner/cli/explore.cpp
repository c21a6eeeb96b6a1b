#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/file_text.h"
#include "run/function_search.h"

namespace patchbench::cli {
namespace {

constexpr const char* kExploreFooter =
    R"(Two plain processes of your interpreter: one calls the function, one the reference. Nothing is
sandboxed, and nothing goes into the ledger. axes.json says which cases there are:
  {"axes": {"rows": {"from": 1, "to": 300}, "cols": {"from": 1, "to": 300},
            "dtype": ["float32", "bfloat16", "float16"]},
   "tensors": {"x": {"shape": ["rows", "cols"]}, "weight": {"shape": ["cols"]}},
   "gradients": ["x", "weight"], "output": {"shape": ["rows", "cols"]}}
All its forms: repro/function/README.md. With "gradients" the upstream gradient is drawn, too: its
layout, masked rows, magnitude, and how often backward runs.
Right is: an error against the reference in float64 of at most twice that of the reference in the
dtype of the case, plus in units in the last place: 8 for an element, 16 for a row, 4 for the cosine
and for a common factor; in float16 and bfloat16 3, 6, 1 and 2. A case is not judged where the
reference raises, is not finite, or is itself wrong by more than 64 units (32), and not supported
where the function raises NotImplementedError.
Exit: 0 nothing red, 1 something red, 3 cases without an answer.
Examples, with a file silu.json that holds
  {"axes": {"rows": {"from": 1, "to": 300}}, "tensors": {"input": {"shape": ["rows", 3]}},
   "gradients": ["input"], "output": {"shape": ["rows", 3]}}:
  patchbench explore torch.nn.functional:silu --against torch.nn.functional:silu --axes silu.json
  patchbench explore torch.nn.functional:mish --against torch.nn.functional:silu --axes silu.json \
      --python ~/venv --draw 50 --seed 7 --seconds 60 --device cpu)";

struct ExploreOptions {
  FunctionOptions search;
  std::string given;
  std::vector<std::string> pack;  ///< its name and upstream
};

void run_explore(Context& context, const ExploreOptions& arguments) {
  FunctionOptions options = arguments.search;
  if (!arguments.given.empty()) {
    const std::string text =
        arguments.given.starts_with('{') ? arguments.given : read_file(arguments.given);
    options.given = Json::array({parse_json(text, "--case")});
    if (!options.given.front().is_object())
      throw Error(ErrorCode::kUsage, "--case: want a JSON object of axes, or a file with one");
  }
  const FunctionSearch search = search_function(context, options);
  Json document = search_json(options, search);
  if (!context.json) context.out() << search_text(options, search);
  if (!arguments.pack.empty() && search.num_red > 0) {
    document["written"] =
        write_found_pack(context, arguments.pack.front(), title_of(options, search),
                         arguments.pack.back(), found_by(options, search));
    if (!context.json)
      context.out() << "The first files of the pack " << arguments.pack.front() << ":\n";
    for (const Json& file : document["written"])
      if (!context.json) context.out() << "  " << file.get<std::string>() << "\n";
  }
  if (context.json) print_json(context, document);
  context.exit_code = search.status();
}

}  // namespace

void add_explore_command(CLI::App& app, Context& context) {
  auto arguments = std::make_shared<ExploreOptions>();
  CLI::App* command = app.add_subcommand(
      "explore", "search your own function for cases in which it differs from a reference");
  FunctionOptions& search = arguments->search;
  command->add_option("function", search.function, "MODULE:FUNCTION that is searched")->required();
  command->add_option("--against", search.reference, "MODULE:FUNCTION that is right")->required();
  command->add_option("--axes", search.axes, "axes.json: the cases and the tensors")->required();
  command->add_option("--python", search.python,
                      "interpreter or venv that has torch (default: python3 on PATH)");
  command->add_option("--device", search.device, "cpu or cuda:N (default: a GPU if there is one)");
  command->add_option("--draw", search.num_drawn, "cases to draw")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--seed", search.seed, "of cases and values")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--seconds", search.seconds, "then the search stops")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--case", arguments->given,
                      "judge one case with these axes, JSON or a file: what a search printed");
  command
      ->add_option("--save-pack", arguments->pack,
                   "SLUG NAME[@VERSION]=FILE: where something is red, write the first files of a "
                   "pack for the release that has the function, with cases, space and inputs")
      ->expected(2);
  command->footer(kExploreFooter);
  command->callback([arguments, &context] { run_explore(context, *arguments); });
}

}  // namespace patchbench::cli
