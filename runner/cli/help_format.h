#pragma once
#include <CLI/CLI.hpp>

#include <string>

namespace patchbench::cli {

/// The help of CLI11 in lines of at most 100 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
};

}  // namespace patchbench::cli
