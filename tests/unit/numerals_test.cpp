#include "report/numerals.h"

#include <gtest/gtest.h>

namespace patchbench::report {
namespace {

/// What the text states, as it is written; "!" in front of text that cannot be read.
std::vector<std::string> stated(std::string_view text) {
  std::vector<std::string> out;
  for (const Numeral& n : numerals_in(text))
    out.push_back((n.unreadable.empty() ? "" : "!") +
                  std::string(text.substr(n.begin, n.end - n.begin)));
  return out;
}

using Texts = std::vector<std::string>;

TEST(Numerals, NamesVersionsDaysAndIdsAreNone) {
  for (const char* text :
       {"release 0.8.0", "torch 2.11.0+cu130", "mamba-ssm 2.3.2.post1", "Triton 3.6 compiles it",
        "on 2026-11-21", "at 2026-11-21T14:53:25Z", "sm_90a, fp32, bf16, H200, e4m3, dim1",
        "commit da482cf5c8", "git:33e2849ff0 too", "issue #968", "owner/name#1126", "on cuda:0",
        "dsa.py:795 and utils.py:97-129", "the 1st, 2nd and 23rd", "a 2-D tile, a 3D one",
        "reads grad_output[0] alone", "patches/x/0001-row-scale.patch",
        "see https://example.org/pull/1126?x=5", "liger_kernel-0.8.0-py3-none-any.whl"})
    EXPECT_EQ(stated(text), Texts{}) << text;
}

TEST(Numerals, EveryWrittenNumberIsFound) {
  EXPECT_EQ(stated("3.5x faster, x2 at best"), (Texts{"3.5x", "2"}));
  EXPECT_EQ(stated("speedup:3.5x speed=4 ~5"), (Texts{"3.5x", "4", "5"}));
  EXPECT_EQ(stated("13 of 17, 4.7e-2 against 5E-3"), (Texts{"13", "17", "4.7e-2", "5E-3"}));
  EXPECT_EQ(stated("[64, 128] or 1/3 (50%)"), (Texts{"64", "128", "1", "3", "50%"}));
  EXPECT_EQ(stated("Triton 3.6 times as fast"), Texts{"3.6 times"});
  EXPECT_EQ(stated("torch 2.5 GiB"), Texts{"2.5 GiB"});
  EXPECT_EQ(stated("speed.up:50 [50] a[-3] a[1.5]"), (Texts{"50", "50", "3", "1.5"}));
  EXPECT_EQ(stated("1001-row 0.12-ms 0001"), (Texts{"1001", "0.12-ms", "0001"}));
  EXPECT_EQ(stated("4 TB/s and 279 TFLOP/s"), (Texts{"4 TB", "279 TFLOP/s"}));
  EXPECT_EQ(stated("1234567e5 2026-13-41 é5 .5"),
            (Texts{"1234567e5", "2026", "13", "41", "5", ".5"}));
  EXPECT_EQ(stated("<img width=624>"), Texts{"624"});
}

TEST(Numerals, WhatHidesANumberIsRefused) {
  for (const char* text :
       {"５０ % faster", "10⁻³", "½ the memory", "x² more", "٣ times", "①", "&#53;0 percent",
        "&frac12; of it", "1**0** times", "1<b>0</b>", "1`0`", "1_000 tokens",
        "1.234.567 tokens/s 1.234.567 ms", "5pct", "0x1F", "8x16", "5\u200b0", "\U0001d7d7"}) {
    const Texts got = stated(text);
    EXPECT_TRUE(std::any_of(got.begin(), got.end(), [](const std::string& s) {
      return s.starts_with("!");
    })) << text;
  }
}

TEST(Numerals, UnitsAreConvertedAndToldApart) {
  const auto only = [](std::string_view text) { return numerals_in(text).at(0); };
  EXPECT_DOUBLE_EQ(only("57.1 MiB").value, 57.1 * 1048576);
  EXPECT_EQ(only("57.1 MiB").measurand, Measurand::kBytes);
  EXPECT_DOUBLE_EQ(only("12.5ms").value, 0.0125);
  EXPECT_EQ(only("12.5ms").measurand, Measurand::kSeconds);
  EXPECT_EQ(only("2.0 ×").measurand, Measurand::kRatio);
  EXPECT_EQ(only("4.3 TB/s").measurand, Measurand::kRate);
  EXPECT_EQ(only("8192 x 256").measurand, Measurand::kPlain);
  EXPECT_DOUBLE_EQ(only("57 %").value, 0.57);
  EXPECT_DOUBLE_EQ(only("1,234,567 bytes").value, 1234567);
  EXPECT_DOUBLE_EQ(only("at -3.5 there").value, -3.5);
  EXPECT_DOUBLE_EQ(only("4.7e-2").half_unit, 0.0005);
  EXPECT_EQ(only("4.70e-2").num_digits, 3);
  EXPECT_EQ(only("0.0047").num_digits, 2);
}

}  // namespace
}  // namespace patchbench::report
