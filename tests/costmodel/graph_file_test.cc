// The graph files of perf/policies: what is read, what is refused and how, and that the recorded ones are whole.
#include "graph_file.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace perf {
namespace {

std::string Refusal(const std::string& text) {
  try {
    ParseGraph(text, "file");
  } catch (const GraphFileError& error) {
    return error.what();
  }
  return "";
}

TEST(GraphFile, CostsAndEdgesAreRead) {
  const std::vector<RecordedNode> nodes =
      ParseGraph("engine-graph 1\n# a comment\n120\n81000/45000 0\n5 0 1\n", "file");
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].nanos, 120);
  EXPECT_EQ(nodes[1].with_two, 45000);
  EXPECT_EQ(nodes[2].before, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(GraphText(nodes), "engine-graph 1\n120\n81000/45000 0\n5 0 1\n");
}

TEST(GraphFile, RefusalsNameTheLineAndWhatIsAllowed) {
  EXPECT_EQ(Refusal("engine-graph 2\n5\n"),
            "file, line 1: this is no graph file of this version: its first line is 'engine-graph 2' and must be "
            "'engine-graph 1'");
  EXPECT_EQ(Refusal("engine-graph 1\n5\n6 1\n"),
            "file, line 3: node 1 comes after node 1, which is not an earlier one");
  EXPECT_EQ(Refusal("engine-graph 1\n5\n6\n7 1 0\n"),
            "file, line 4: the nodes before a node must be ascending, and each named once");
  EXPECT_EQ(Refusal("engine-graph 1\n0\n"), "file, line 2: a node takes 1 to 60000000000 nanoseconds, not 0");
  EXPECT_EQ(Refusal("engine-graph 1\n5/5\n"),
            "file, line 2: with two threads a node must take less than with one, and not nothing");
  for (const char* line : {"x", "-5", "5,0", "5  0", "5 ", "5/", "1e3", "99999999999999999999"})
    EXPECT_EQ(Refusal(std::string("engine-graph 1\n") + line + "\n"),
              std::string("file, line 2: '") + line + "' is not 'NANOSECONDS[/WITH TWO] [NODE BEFORE] ...'");
  EXPECT_EQ(Refusal("engine-graph 1\n12"),
            "file, line 2: the file ends in the middle of a line, so it was cut off; record it again");
  EXPECT_EQ(Refusal(""), "file: there is no node in it");
  EXPECT_EQ(Refusal("engine-graph 1\n# nothing\n"), "file: there is no node in it");
}

TEST(GraphFile, AFileThatIsNotThereIsNamed) {
  try {
    ReadGraph("/nowhere/x.graph");
    FAIL();
  } catch (const GraphFileError& error) {
    EXPECT_STREQ(error.what(), "cannot read graph file '/nowhere/x.graph': No such file or directory");
  }
}

TEST(GraphFile, TheRecordedGraphsAreWhole) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PERF_GRAPHS)) {
    if (entry.path().extension() != ".graph") continue;
    ++files;
    EXPECT_GT(ReadGraph(entry.path()).size(), 20u) << entry.path();
  }
  EXPECT_EQ(files, 10u);
}

}  // namespace
}  // namespace perf
