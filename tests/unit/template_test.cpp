#include "report/template.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench::report {
namespace {

const Json kData = {{"name", "a <b> & c"}, {"none", ""}, {"rows", {{{"x", "1"}}, {{"x", "2"}}}}};

TEST(Template, ValuesListsAndAbsenceAreFilledInUnescaped) {
  EXPECT_EQ(fill_template("{{name}}", "t", kData), "a <b> & c");
  EXPECT_EQ(fill_template("{{#rows}}[{{x}}]{{/rows}}{{^none}}no{{/none}}", "t", kData), "[1][2]no");
}

TEST(Template, AMistypedNameIsRefusedWithItsLine) {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      return fill_template(text, "body.md", kData);
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(refused("fine\n{{nane}}"), "body.md:2: no value \"nane\"; did you mean name?");
  EXPECT_NE(refused("{{#rows}} never closed").find("body.md"), std::string::npos);
}

}  // namespace
}  // namespace patchbench::report
