#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench::report {

/// What a number counts: only like is compared with like.
enum class Measurand {
  kPlain,    ///< a count, an error, a fraction
  kBytes,    ///< in bytes
  kSeconds,  ///< in seconds
  kRatio,    ///< "3x", "2 times"
  kRate,     ///< bytes, operations or tokens a second
};

/// One number as a text writes it.
struct Numeral {
  std::size_t begin = 0, end = 0;  ///< bytes of the text, its unit included
  double value = 0;                ///< in the measurand's own unit
  double half_unit = 0;            ///< half of its last written digit, in the same unit
  int num_digits = 0;              ///< significant digits as written
  Measurand measurand = Measurand::kPlain;
  std::string unreadable;  ///< not empty: what hides its value ("digits split by markup")
};

/// The numbers that a line of prose states, in order. Not numbers, in this sense: versions with
/// two dots or more, or with one dot after the name of a program; days YYYY-MM-DD with or without
/// a time; words that begin with a letter or "_" (sm_90, fp32, H200) unless "x" stands before the
/// digits; hexadecimal ids of 7 to 64 digits with a letter among them; #123; cuda:0; file.py:12-34;
/// a subscript behind such a word (grad_output[0]); 1st, 2nd; 2-D; 0001-name; what follows http://
/// or https:// up to a space. Everything else that shows a digit is one, in whatever script.
std::vector<Numeral> numerals_in(std::string_view text);

}  // namespace patchbench::report
