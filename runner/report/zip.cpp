#include "report/zip.h"

#include <zlib.h>

#include <cstdint>
#include <limits>

#include "core/error.h"

namespace patchbench::report {
namespace {

constexpr uint16_t kVersion = 20, kUtf8Names = 1 << 11, kStored = 0;
constexpr uint16_t kMidnight = 0, kFirstDay = (1 << 5) | 1;  // 1980-01-01

/// Little-endian, as the format wants it.
template <typename Integer>
void put(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i)
    out += static_cast<char>((value >> (8 * i)) & 0xff);
}

/// What the header before a file and its entry in the directory share.
std::string file_fields(const std::string& name, const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
  std::string out;
  for (const uint16_t field : {kVersion, kUtf8Names, kStored, kMidnight, kFirstDay})
    put(out, field);
  for (const uint32_t field : {static_cast<uint32_t>(crc), bytes, bytes}) put(out, field);
  put(out, static_cast<uint16_t>(name.size()));
  put(out, uint16_t{0});  // no extra field
  return out;
}

}  // namespace

std::string zip_of(const std::map<std::string, std::string>& files) {
  std::string out, directory;
  const auto need = [](bool fits) {
    if (!fits) throw Error(ErrorCode::kInternal, "zip: more than the format's 32 bits hold");
  };
  need(files.size() < std::numeric_limits<uint16_t>::max());
  for (const auto& [name, text] : files) {
    need(name.size() < std::numeric_limits<uint16_t>::max() &&
         out.size() + text.size() < std::numeric_limits<int32_t>::max());
    const auto offset = static_cast<uint32_t>(out.size());
    const std::string fields = file_fields(name, text);
    out += "PK\x03\x04" + fields + name + text;
    directory += "PK\x01\x02";
    put(directory, kVersion);
    directory += fields;
    for (const uint16_t field : {0, 0, 0}) put(directory, field);  // comment, disk, attributes
    put(directory, uint32_t{0});
    put(directory, offset);
    directory += name;
  }
  const auto start = static_cast<uint32_t>(out.size());
  out += directory + "PK\x05\x06";
  const auto count = static_cast<uint16_t>(files.size());
  for (const uint16_t field : {uint16_t{0}, uint16_t{0}, count, count}) put(out, field);
  put(out, static_cast<uint32_t>(directory.size()));
  put(out, start);
  put(out, uint16_t{0});  // no comment
  return out;
}

}  // namespace patchbench::report
