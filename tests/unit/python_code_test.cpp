#include "core/python_code.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "core/error.h"
#include "core/python_tokens.h"
#include "unit/python_layout.h"

namespace patchbench {
namespace {

using Kind = PythonTokenKind;

PythonCode code_of(const std::string& source) { return python_code(source, "a.py"); }

/// The tokens, each with its text; layout by name.
std::vector<std::string> words_of(const std::string& source) {
  const PythonTokens read = python_tokens(source, "a.py");
  std::vector<std::string> words;
  for (const PythonToken& one : read.tokens) {
    words.push_back(one.kind == Kind::kNewline  ? "NEWLINE"
                    : one.kind == Kind::kIndent ? "INDENT"
                    : one.kind == Kind::kDedent ? "DEDENT"
                                                : std::string(read.of(one)));
  }
  return words;
}

using Words = std::vector<std::string>;

std::string refusal(const std::string& source) {
  try {
    code_of(source);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

constexpr const char* kModule = R"(#!/usr/bin/env python3
"""What the module is."""
from __future__ import annotations
import torch

LIMIT: int = 0x1F  # a comment

def outer(x, *, y=lambda z: {1: 2}):
    """What it
    does."""
    def inner():
        return f"{x!r:>{y}} {{}} {y = } {'a' 'b'}"
    total = (x +
             1.5e-3j)
    if total: return inner
    return \
        None


class Thing(torch.nn.Module):
    'a class'
    attribute = b"\x00"

    @property
    def size(self): return self._size

    @size.setter
    def size(self, value: "int"):
        # only a comment
        self._size = value[..., 1:2] @ value

    class Inner:
        async def run(self):
            async with self as one: await one

print(outer)
)";

TEST(PythonTokens, LayoutIsLinesAndBlocksAlone) {
  EXPECT_EQ(words_of("if a:\n\n  # c\n\tb = (1,\n 2)\\\n+3\nelse: c"),
            (Words{"if", "a", ":", "NEWLINE", "INDENT",  "b",      "=",    "(", "1", ",",
                   "2",  ")", "+", "3",       "NEWLINE", "DEDENT", "else", ":", "c", "NEWLINE"}));
  EXPECT_EQ(words_of("\xef\xbb\xbf"
                     "a\r\nb\rc"),
            (Words{"a", "NEWLINE", "b", "NEWLINE", "c", "NEWLINE"}));
  EXPECT_EQ(words_of(" \n# nothing\n\\\n\n"), Words{});
}

TEST(PythonTokens, Numbers) {
  for (const std::string number : {"0", "1_000", "0xFf_0", "0b1_0", "0O17", "1.", ".5", "1.5e-3",
                                   "1e5", "3j", "1_0.0_1E+1_0J", "1e5j"})
    EXPECT_EQ(words_of(number), (Words{number, "NEWLINE"}));
  EXPECT_EQ(words_of("1if x.real else 1..real"),
            (Words{"1", "if", "x", ".", "real", "else", "1.", ".", "real", "NEWLINE"}));
}

TEST(PythonTokens, Strings) {
  for (const std::string text : {R"('a\'b')", R"(rb"\"")", R"(Rb'''a
'b''\'''')",
                                 R"("a\
b")",
                                 R"(u"")", R"("""""")", R"(r"\\")"})
    EXPECT_EQ(words_of(text), (Words{text, "NEWLINE"})) << text;
  EXPECT_EQ(words_of("ub'a'"), (Words{"ub", "'a'", "NEWLINE"}));
}

TEST(PythonTokens, FStringsWithTheQuotesOfTheirOwn) {
  EXPECT_EQ(words_of(R"(f'a{x['b']}{{}}\N{DASH}\{y:{w}.2f}')"),
            (Words{"f'", "a", "{", "x", "[", "'b'", "]", "}", R"({{}}\N{DASH}\)", "{", "y", ":",
                   "{", "w", "}", ".2f", "}", "'", "NEWLINE"}));
  EXPECT_EQ(words_of("f'''{\n  a # c\n}'''"), words_of("f'''{a}'''"));
  EXPECT_EQ(words_of("f'{a!r}{b != c}'"),
            (Words{"f'", "{", "a", "!", "r", "}", "{", "b", "!=", "c", "}", "'", "NEWLINE"}));
  EXPECT_NE(words_of("f'{a = }'"), words_of("f'{a=}'")) << "the field prints its own spaces";
  EXPECT_EQ(words_of("f'{ a }'"), words_of("f'{a}'"));
  EXPECT_EQ(words_of(R"(rf"\N{a}")"), (Words{"rf\"", "\\N", "{", "a", "}", "\"", "NEWLINE"}));
  EXPECT_EQ(words_of("t'{a}'").front(), "t'");
  EXPECT_EQ(words_of(R"(f"{f"{f"{1}"}"}")").size(), 14u);
}

TEST(PythonTokens, WhatIsNotPythonIsRefusedWithItsLine) {
  EXPECT_EQ(refusal("a\n'b"), "a.py:2: a string that does not end");
  EXPECT_EQ(refusal("a\n\n(b"), "a.py:3: a bracket that does not end");
  EXPECT_EQ(refusal("(a]"), "a.py:1: a bracket that none opens");
  EXPECT_EQ(refusal("if a:\n    b\n  c"), "a.py:3: an indentation that no outer block has");
  EXPECT_EQ(refusal("a $ b"), "a.py:1: a character that is not Python's");
  EXPECT_EQ(refusal(std::string("a\0b", 3)), "a.py:1: a character that is not Python's");
  EXPECT_EQ(refusal("a \\ b"), "a.py:1: a backslash that joins no lines");
  EXPECT_EQ(refusal("f'{a'"), "a.py:1: a string that does not end");
  EXPECT_EQ(refusal("f'}'"), "a.py:1: a brace that none opens in an f-string");
  EXPECT_EQ(refusal("f'{a:\n}'"), "a.py:1: a string that does not end");
  EXPECT_EQ(refusal(std::string(201, '(')), "a.py:1: too many brackets");
  EXPECT_EQ(refusal("def f()"), "a.py:1: a definition without a body");
  EXPECT_EQ(refusal("x\ndef f():\ny"), "a.py:2: a definition without a body");
  EXPECT_EQ(refusal("class"), "a.py:1: a definition without a name");
  std::string nested, fields;
  for (int i = 0; i < 200; ++i) nested += "f'{", fields += i == 0 ? "f'{a" : ":{a";
  EXPECT_EQ(refusal(nested), "a.py:1: too many f-strings within f-strings");
  EXPECT_NE(refusal(fields), "");
}

TEST(PythonCode, FunctionsByTheirQualifiedNames) {
  std::set<std::string> names;
  for (const auto& [name, digest] : code_of(kModule).functions) names.insert(name);
  EXPECT_EQ(names,
            (std::set<std::string>{"outer", "outer.inner", "Thing.size", "Thing.Inner.run"}));
}

TEST(PythonCode, AnotherLayoutHasTheSameDigests) {
  const PythonCode code = code_of(kModule);
  const PythonTokens tokens = python_tokens(kModule, "a.py");
  for (const auto& [indent, end] : std::vector<std::pair<std::string, std::string>>{
           {" ", "\n"}, {"\t", "\r\n"}, {"        ", " # a comment\n\n\n"}}) {
    const PythonCode other = code_of(sample::laid_out(tokens, indent, end));
    EXPECT_EQ(other.whole, code.whole);
    EXPECT_EQ(other.module_level, code.module_level);
    EXPECT_EQ(other.functions, code.functions);
  }
}

TEST(PythonCode, DocstringsAndCommentsDoNotCount) {
  const auto same = [](const std::string& one, const std::string& other) {
    const PythonCode a = code_of(one), b = code_of(other);
    return a.whole == b.whole && a.module_level == b.module_level && a.functions == b.functions;
  };
  EXPECT_TRUE(same("'one'\nx", "x"));
  EXPECT_TRUE(same("def f():\n  'one' \"two\"\n  return 1", "def f():\n  return 1  # type: int"));
  EXPECT_TRUE(same("def f(): 'one'; return 1", "def f(): return 1"));
  EXPECT_TRUE(same("class A:\n  r'''one'''\n  x = 1", "class A:\n  '''two'''\n  x = 1"));
  EXPECT_FALSE(same("def f():\n  b'one'\n  return 1", "def f():\n  return 1"));
  EXPECT_FALSE(same("def f():\n  'one'.x()", "def f():\n  'two'.x()"));
  EXPECT_FALSE(same("x\n'one'", "x\n'two'")) << "a string further down is no docstring";
  EXPECT_FALSE(same("def f():\n  x\n  y", "def f():\n  if x:\n    y"));
  EXPECT_FALSE(same("if x:\n  y\nz", "if x:\n  y\n  z")) << "a block is where its lines are";
}

/// Every token of the module that is in no docstring is changed in turn: the digest of each
/// function that holds it changes, and the module level's if none does.
TEST(PythonCode, EveryOtherTokenChangesTheDigestOfItsFunction) {
  const PythonCode code = code_of(kModule);
  const PythonTokens tokens = python_tokens(kModule, "a.py");
  int num_changed = 0;
  for (const PythonToken& token : tokens.tokens) {
    const std::string word(tokens.of(token));
    const bool is_docstring = word.starts_with("\"\"\"") || word == "'a class'";
    if (token.begin == token.end || is_docstring) continue;
    std::string text = tokens.text;
    switch (token.kind) {
      case Kind::kName:
        text.insert(token.end, "_");
        break;
      case Kind::kNumber:
        text.insert(token.begin, "1");
        break;
      case Kind::kString:
      case Kind::kFormatText:
        text.insert(token.end - 1, "_");
        break;
      default:
        continue;  // without its brackets and signs a text is another structure, not one change
    }
    std::optional<PythonCode> changed;
    try {
      changed = code_of(text);
    } catch (const Error&) {
      continue;  // `def_`: the definition is none
    }
    ++num_changed;
    EXPECT_NE(changed->whole, code.whole) << word;
    EXPECT_TRUE(changed->functions != code.functions || changed->module_level != code.module_level)
        << word;
  }
  EXPECT_GT(num_changed, 70);
}

TEST(PythonCode, AFunctionHasItsDecoratorsAndWhatIsNestedInIt) {
  const PythonCode one = code_of("@a\n@b(1)\ndef f(x):\n  def g(): return 1\n  return g\n");
  const PythonCode decorated = code_of("@a\n@b(2)\ndef f(x):\n  def g(): return 1\n  return g\n");
  const PythonCode nested = code_of("@a\n@b(1)\ndef f(x):\n  def g(): return 2\n  return g\n");
  EXPECT_NE(one.functions.at("f"), decorated.functions.at("f"));
  EXPECT_NE(one.module_level, decorated.module_level) << "a decorator runs on import";
  EXPECT_EQ(one.functions.at("f.g"), decorated.functions.at("f.g"));
  EXPECT_NE(one.functions.at("f"), nested.functions.at("f"));
  EXPECT_NE(one.functions.at("f.g"), nested.functions.at("f.g"));
  EXPECT_EQ(one.module_level, nested.module_level);
}

TEST(PythonCode, TheModuleLevelHasWhatRunsOnImport) {
  const std::string text = "x = 1\nclass A:\n  y = 2\n  def f(self, z=3):\n    return 4\n";
  const PythonCode code = code_of(text);
  for (const char digit : {'1', '2', '3'}) {
    std::string other = text;
    other[other.find(digit)] = '9';
    EXPECT_NE(code_of(other).module_level, code.module_level) << digit;
  }
  std::string other = text;
  other[other.find('4')] = '9';
  EXPECT_EQ(code_of(other).module_level, code.module_level);
  EXPECT_NE(code_of(other).whole, code.whole);
}

TEST(PythonCode, TwoDefinitionsOfOneNameAreOneEntry) {
  const std::string first = "if a:\n  def f(): return 1\n", second = "else:\n  def f(): return 2\n";
  EXPECT_EQ(code_of(first + second).functions.size(), 1u);
  EXPECT_NE(code_of(first + second).functions, code_of(first).functions);
}

/// Four times the text takes about four times as long, whatever the text repeats.
TEST(PythonCode, TheTimeGrowsWithTheLength) {
  for (const std::string unit :
       {"def f(): 'd'; return 1\n", "f'\\N{\\N{'\n", "f'{a= }'\n", "(\n)\n", "\\\n", "'''\n'''\n",
        "class A:\n class B:\n  def f(self):\n   def g(): pass\n", "1_", "@a\n"}) {
    const auto seconds = [&](std::size_t num_bytes) {
      std::string text;
      while (text.size() < num_bytes) text += unit;
      const auto started = std::chrono::steady_clock::now();
      try {
        code_of(text);
      } catch (const Error&) {
        // A refusal takes its time, too.
      }
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    };
    const double small = std::max(seconds(250'000), 0.01);
    EXPECT_LT(seconds(1'000'000), 12 * small) << unit;
  }
}

}  // namespace
}  // namespace patchbench
