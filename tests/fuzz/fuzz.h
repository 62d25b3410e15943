// What the fuzzers share: an input read piece by piece, and the end of a process whose property does not hold.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace engine::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  uint64_t Number() {
    uint64_t number = 0;
    for (int i = 0; i < 8; ++i) number = number << 8 | Byte();
    return number;
  }
  // Up to the next line end, without NUL: a C string.
  std::string Line() {
    const size_t end = rest_.find('\n');
    std::string line(rest_.substr(0, end));
    rest_.remove_prefix(end == rest_.npos ? rest_.size() : end + 1);
    return line.substr(0, line.find('\0'));
  }
  std::string Rest() { return std::string(std::exchange(rest_, {})); }

 private:
  std::string_view rest_;
};

// Makes the environment what the input's lines "NAME=value" say of `names` ("" is none), and unsets the others of these. Returns
// the lines.
template <class Names>
std::string SetEnvironment(Input& input, const Names& names) {
  for (const char* name : names)
    if (*name) unsetenv(name);
  std::string told;
  while (!input.empty()) {
    const std::string line = input.Line();
    for (const char* name : names)
      if (*name && line.starts_with(std::string(name) + "=")) setenv(name, line.c_str() + line.find('=') + 1, 1);
    told += line + "\n";
  }
  return told;
}

// A property: what was read or written is as promised.
inline void Check(bool holds, const char* property, std::string_view about) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n%.*s\n", property, static_cast<int>(about.size()), about.data());
  std::abort();
}

}  // namespace engine::fuzz
