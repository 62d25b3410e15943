#include "cost_file.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <locale>
#include <set>
#include <sstream>

namespace engine::costmodel {
namespace {

constexpr std::string_view kHeader = "engine-costs 1";

std::string Escaped(const std::string& key) {
  std::string out;
  for (const char c : key) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Plain(std::string_view key) {
  std::string out;
  for (size_t i = 0; i < key.size(); ++i) {
    if (key[i] != '\\' || i + 1 == key.size()) {
      out += key[i];
      continue;
    }
    ++i;
    out += key[i] == 'n' ? '\n' : key[i] == 'r' ? '\r' : key[i];
  }
  return out;
}

// Takes the next field of the line as a number; false if it is not one.
template <class T>
bool Take(std::string_view& line, T* value) {
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), *value);
  if (error != std::errc{} || stop == line.data() + line.size() || *stop != ' ') return false;
  line.remove_prefix(static_cast<size_t>(stop - line.data()) + 1);
  return true;
}

}  // namespace

std::string CostText(const std::vector<NodeCost>& costs) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // the program's locale must not put separators into numbers
  out.precision(9);
  out << kHeader << "\n# samples nanoseconds spread shape key\n";
  for (const NodeCost& c : costs)
    out << c.samples << ' ' << c.nanos << ' ' << c.spread << ' ' << c.shape << ' ' << Escaped(c.key) << '\n';
  return out.str();
}

std::vector<NodeCost> ParseCosts(const std::string& text, const std::string& where) {
  std::vector<NodeCost> costs;
  std::set<std::pair<uint64_t, std::string>> seen;
  std::istringstream in(text);
  std::string buffer;
  for (int number = 1; std::getline(in, buffer); ++number) {
    const auto refuse = [&](const std::string& what) {
      throw UsageError(where + ", line " + std::to_string(number) + ": " + what);
    };
    if (number == 1) {
      if (buffer != kHeader)
        refuse("this is not a cost file of this version: its first line is '" + buffer.substr(0, 40) +
               "' and must be '" + std::string(kHeader) + "'");
      continue;
    }
    if (buffer.empty() || buffer[0] == '#') continue;
    if (in.eof()) refuse("the file ends in the middle of a line, so it was cut off; save it again");
    std::string_view line = buffer;
    NodeCost cost;
    if (!Take(line, &cost.samples) || !Take(line, &cost.nanos) || !Take(line, &cost.spread) ||
        !Take(line, &cost.shape) || line.empty())
      refuse("'" + buffer.substr(0, 60) + "' is not 'samples nanoseconds spread shape key'");
    if (!std::isfinite(cost.nanos) || cost.nanos < 0 || !std::isfinite(cost.spread) || cost.spread < 0)
      refuse("a cost must be a finite number of nanoseconds, 0 or more");
    cost.key = Plain(line);
    if (!seen.emplace(cost.shape, cost.key).second)
      refuse("key '" + cost.key + "' comes a second time in shape class " + std::to_string(cost.shape) +
             "; once is allowed");
    costs.push_back(std::move(cost));
  }
  if (text.empty())
    throw UsageError(where + ", line 1: the file is empty; it must begin with '" + std::string(kHeader) + "'");
  return costs;
}

void WriteCosts(const std::string& path, const std::vector<NodeCost>& costs) {
  // Written beside the file and then renamed, so that a reader sees either the old file or the new one.
  // Others may write the same file, so each draft has a name of its own. One stays where its process is killed meanwhile.
  static constinit std::atomic<uint32_t> drafts{0};
  const std::string draft = path + "." + std::to_string(getpid()) + "." + std::to_string(drafts.fetch_add(1)) + ".new";
  const auto refuse = [&](const char* what) {
    const std::string why = std::strerror(errno);
    std::remove(draft.c_str());
    throw UsageError(std::string(what) + " cost file '" + path + "': " + why);
  };
  std::ofstream out(draft, std::ios::binary | std::ios::trunc);
  if (!out) refuse("cannot write");
  out << CostText(costs);
  out.close();
  if (!out) refuse("cannot write");
  if (std::rename(draft.c_str(), path.c_str()) != 0) refuse("cannot replace");
}

std::vector<NodeCost> ReadCosts(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UsageError("cannot read cost file '" + path + "': " + std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return ParseCosts(text.str(), "cost file '" + path + "'");
}

}  // namespace engine::costmodel
