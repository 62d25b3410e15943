// Graph files: any text is read or refused by GraphFileError; what was read is written so that it reads the same.
#include "policies/graph_file.h"

#include "fuzz.h"

using engine::fuzz::Check;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<perf::RecordedNode> nodes;
  try {
    nodes = perf::ParseGraph(engine::fuzz::Input(data, size).Rest(), "fuzz");
  } catch (const perf::GraphFileError&) {
    return 0;
  }
  const std::string text = perf::GraphText(nodes);
  const std::vector<perf::RecordedNode> again = perf::ParseGraph(text, "again");
  Check(again.size() == nodes.size(), "another number of nodes", text);
  for (size_t i = 0; i < nodes.size(); ++i)
    Check(nodes[i].nanos == again[i].nanos && nodes[i].with_two == again[i].with_two &&
              nodes[i].before == again[i].before,
          "another node", text);
  Check(perf::GraphText(again) == text, "written differently the second time", text);
  return 0;
}
