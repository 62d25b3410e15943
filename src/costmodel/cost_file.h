// The file that keeps costs: text, with a line for each key and shape class.
//
//   engine-costs 1
//   # samples nanoseconds spread shape key
//   100 5210.5 180 0 dense
//
// The key comes last and may contain spaces. A backslash, a line feed and a carriage return in it are written as \\ \n
// \r.
//
// Errors: UsageError with the file and the line. Writing replaces the file as a whole.
#pragma once

#include <string>
#include <vector>

#include "engine/spi/cost_model.h"

namespace engine::costmodel {

std::string CostText(const std::vector<NodeCost>& costs);
// `where`: what messages call the text.
std::vector<NodeCost> ParseCosts(const std::string& text, const std::string& where);
void WriteCosts(const std::string& path, const std::vector<NodeCost>& costs);
std::vector<NodeCost> ReadCosts(const std::string& path);

}  // namespace engine::costmodel
