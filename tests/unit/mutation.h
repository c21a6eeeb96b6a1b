#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

/// A seeded mutational fuzz lane. Input i depends on the seed and i alone, so that a failure names
/// what repeats it. PATCHBENCH_FUZZ=N sets the number of inputs a target (default 10,000),
/// PATCHBENCH_FUZZ_SEED the seed.
namespace patchbench::mutation {

/// A count from the environment, or `otherwise`.
inline uint64_t env_number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::stoull(text) : otherwise;
}

/// splitmix64: the same numbers on every machine and standard library.
class Random {
 public:
  /// Streams of one seed do not overlap by a shift: the multiplier is not the step of the state.
  Random(uint64_t seed, uint64_t stream)
      : state_((seed * 0xbf58476d1ce4e5b9) ^ (stream * 0x94d049bb133111eb)) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  size_t below(size_t limit) { return limit == 0 ? 0 : next() % limit; }
  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[below(from.size())];
  }

 private:
  uint64_t state_;
};

inline const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all = {"null",
                                               "true",
                                               "-1",
                                               "0",
                                               "1e999",
                                               "-0.0",
                                               "1e-400",
                                               "9007199254740993",
                                               "18446744073709551616",
                                               "\"\"",
                                               "{}",
                                               "[]",
                                               "\"\\ud800\"",
                                               "\\u0000",
                                               "\xff",
                                               "\xed\xa0\x80",
                                               "\xef\xbb\xbf",
                                               "\n.\n",
                                               "\n..\n",
                                               "s/.//\n",
                                               "1,2147483648d\n",
                                               "99999999999999999999a\n",
                                               "$d\n",
                                               "w\n",
                                               "../",
                                               "/",
                                               "\r\n",
                                               "\n",
                                               "\n\n",
                                               "\t",
                                               " ",
                                               "\"",
                                               ",",
                                               ":",
                                               "]",
                                               "}",
                                               "[",
                                               "{",
                                               "nan",
                                               "inf",
                                               "File: ",
                                               "Blob: ",
                                               "Result: deleted\n",
                                               "Mode: 100644\n",
                                               "Final-Newline: no\n",
                                               "[[[[[[[[",
                                               "BF16",
                                               "F64",
                                               std::string("\0", 1),
                                               std::string(8, '\xff'),
                                               std::string(64, 'a'),
                                               std::string(5000, 'x'),
                                               std::string(70, '[')};
  return all;
}

/// One change of bytes.
inline void mutate_bytes(std::string& text, const std::vector<std::string>& corpus,
                         Random& random) {
  const size_t at = random.below(text.size() + 1);
  const size_t length = random.below(std::min<size_t>(text.size() - at, 64) + 1);
  switch (random.below(8)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      return;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random.next());
      return;
    case 2:
      text.insert(at, random.pick(tokens()));
      return;
    case 3:
      text.replace(at, length, random.pick(tokens()));
      return;
    case 4:
      text.erase(at, length);
      return;
    case 5:
      text.insert(at, text.substr(at, length));
      return;
    case 6:
      text.resize(at);
      return;
    default: {
      const std::string& other = random.pick(corpus);
      const size_t from = random.below(other.size() + 1);
      text.replace(at, length, other.substr(from, random.below(200)));
    }
  }
}

inline Json odd_value(Random& random) {
  static const std::vector<Json> all = {nullptr,
                                        true,
                                        false,
                                        0,
                                        -1,
                                        1,
                                        99,
                                        1.5,
                                        -0.0,
                                        5e-324,
                                        1.7976931348623157e308,
                                        9007199254740992.0,
                                        "",
                                        "nan",
                                        "-inf",
                                        "a",
                                        "a/../b",
                                        "\n",
                                        "\u20ac",
                                        std::string("\0", 1),
                                        std::string(64, 'a'),
                                        std::string(64, 'g'),
                                        std::string(3000, 'x'),
                                        Json::object(),
                                        Json::array(),
                                        Json::array({Json::array({1})}),
                                        Json{{"a", 1}},
                                        "cpu",
                                        "present",
                                        "trigger",
                                        "packs",
                                        "confirmed",
                                        "2026-02-30T99:99:99Z",
                                        "0000-00-00",
                                        "urn:patchbench:verdict:v1",
                                        "F32",
                                        Json::array({0, 0})};
  return random.pick(all);
}

/// One change of a value somewhere in the tree.
inline void mutate_tree(Json& value, Random& random, int depth = 0) {
  const bool goes_down =
      value.is_structured() && !value.empty() && depth < 60 && random.below(5) != 0;
  if (!goes_down) {
    value = odd_value(random);
    return;
  }
  auto at = value.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random.below(value.size())));
  switch (random.below(12)) {
    case 0:
      value.erase(at);
      return;
    case 1:
      if (value.is_array()) {
        value.push_back(Json(*at));
      } else {
        value[random.below(2) == 0 ? at.key() + "x" : "zzz"] = Json(*at);
      }
      return;
    case 2:
      *at = Json(value.front());
      return;
    default:
      mutate_tree(*at, random, depth + 1);
  }
}

/// What is fuzzed: seeds, how to change the structure of one, and the parser with its round trip.
struct Target {
  std::vector<std::string> corpus;
  std::function<std::string(const std::string& seed, Random&)> restructure;
  std::function<void(const std::string& input)> parse_and_round_trip;
};

inline std::string input_of(const Target& target, uint64_t seed, uint64_t index) {
  Random random(seed, index);
  std::string text = random.pick(target.corpus);
  const bool is_structural = random.below(2) == 0;
  if (is_structural) text = target.restructure(text, random);
  const size_t num_changes =
      is_structural ? random.below(2) * random.below(3) : 1 + random.below(6);
  for (size_t i = 0; i < num_changes; ++i) mutate_bytes(text, target.corpus, random);
  return text;
}

/// Runs the lane: every input gives a valid object that survives its round trip, or an Error of
/// kind kUsage on one line; all else fails the test that calls it. The counts are recorded as the
/// test's properties.
inline void fuzz(const Target& target) {
  const uint64_t num_inputs = env_number("PATCHBENCH_FUZZ", 10000),
                 seed = env_number("PATCHBENCH_FUZZ_SEED", 1);
  for (const std::string& text : target.corpus)
    ASSERT_NO_THROW(target.parse_and_round_trip(text)) << text;
  uint64_t num_accepted = 0;
  const auto started = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < num_inputs; ++i) {
    const std::string input = input_of(target, seed, i);
    try {
      target.parse_and_round_trip(input);
      ++num_accepted;
    } catch (const Error& e) {
      const std::string message = e.what();
      const bool is_clear =
          !message.empty() && message.find_first_of(std::string("\n\r\0", 3)) == std::string::npos;
      ASSERT_TRUE(e.code() == ErrorCode::kUsage && is_clear)
          << "input " << i << " of seed " << seed << ": " << message;
    } catch (const std::exception& e) {
      FAIL() << "input " << i << " of seed " << seed << " gave " << e.what() << "\n"
             << Json(shown(input));
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "input " << i << " of seed " << seed << "\n"
                                              << shown(input);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  testing::Test::RecordProperty("inputs", std::to_string(num_inputs));
  testing::Test::RecordProperty("seed", std::to_string(seed));
  testing::Test::RecordProperty("accepted", std::to_string(num_accepted));
  testing::Test::RecordProperty("rejected", std::to_string(num_inputs - num_accepted));
  testing::Test::RecordProperty("seconds", std::to_string(seconds));
  // A lane in which all inputs end the same way does not reach the parser's depths.
  EXPECT_GT(num_accepted, num_inputs / 1000);
  EXPECT_LT(num_accepted, num_inputs * 9 / 10);
}

/// A JSON text with one to three values of its tree changed, in RFC 8785 form or as it comes.
inline std::string change_json(const std::string& text, Random& random, bool is_canonical) {
  Json value = parse_json(text, "seed");
  for (size_t i = 0; i <= random.below(3); ++i) mutate_tree(value, random);
  return is_canonical ? canonical_json(value) : value.dump(random.below(2) == 0 ? 2 : -1);
}

}  // namespace patchbench::mutation
