// Costs as text: what is written is read, what is broken is refused with its line.
#include "cost_file.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "support/engine_test.h"
#include "support/odd_locale.h"

namespace engine::costmodel {
namespace {

using test::Has;
using test::RefusalOf;

const std::vector<NodeCost> kCosts{{"dense", 0, 100, 5210.5, 180},
                                   {"dense", 7, 3, 0.25, 0},
                                   {"a key with spaces\nand lines \\ of them", 0, 1, 1e9, 2e-3}};

void ExpectEqual(const std::vector<NodeCost>& a, const std::vector<NodeCost>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].key, b[i].key);
    EXPECT_EQ(a[i].shape, b[i].shape);
    EXPECT_EQ(a[i].samples, b[i].samples);
    EXPECT_DOUBLE_EQ(a[i].nanos, b[i].nanos);
    EXPECT_DOUBLE_EQ(a[i].spread, b[i].spread);
  }
}

TEST(CostFileTest, WhatIsWrittenIsRead) {
  ExpectEqual(ParseCosts(CostText(kCosts), "text"), kCosts);
  ExpectEqual(ParseCosts(CostText({}), "text"), {});
  EXPECT_TRUE(Has(CostText(kCosts), "100 5210.5 180 0 dense\n")) << "readable";
}

TEST(CostFileTest, WhatIsBrokenIsRefusedWithItsLine) {
  const std::string head = "engine-costs 1\n# comment\n\n";
  const auto refusal = [](const std::string& text) { return RefusalOf([&] { ParseCosts(text, "file 'x'"); }); };
  EXPECT_TRUE(Has(refusal(""), "empty"));
  EXPECT_TRUE(Has(refusal("PK\x03\x04 something else\n"), "file 'x', line 1: this is not a cost file"));
  EXPECT_TRUE(Has(refusal("engine-costs 2\n"), "'engine-costs 1'"));
  EXPECT_TRUE(Has(refusal(head + "12 a b 0 dense\n"), "line 4: '12 a b 0 dense' is not"));
  EXPECT_TRUE(Has(refusal(head + "1 2 3 0 a\n1 2 3 dense\n"), "line 5"));
  EXPECT_TRUE(Has(refusal(head + "1 2 3 0 \n"), "line 4"));
  EXPECT_TRUE(Has(refusal(head + "1 -2 3 0 a\n"), "0 or more"));
  EXPECT_TRUE(Has(refusal(head + "1 inf 3 0 a\n"), "finite"));
  EXPECT_TRUE(Has(refusal(head + "1 2 3 0 a\n2 2 3 0 a\n"), "line 5: key 'a' comes a second time"));
  EXPECT_TRUE(Has(refusal(head + "1 2 3 0 dense"), "ends in the middle of a line"));
}

TEST(CostFileTest, FilesAreReplacedAsAWhole) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "engine_cost_file_test";
  std::filesystem::create_directories(folder);
  const std::string path = folder / "costs.txt";
  WriteCosts(path, {kCosts[1]});
  WriteCosts(path, kCosts);
  ExpectEqual(ReadCosts(path), kCosts);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "no draft is left";
  EXPECT_TRUE(Has(RefusalOf([&] { WriteCosts(folder / "no" / "such" / "folder", kCosts); }), "cannot write"));
  EXPECT_TRUE(Has(RefusalOf([&] { ReadCosts(folder / "missing"); }), "cannot read"));
  std::filesystem::remove_all(folder);
}

TEST(CostFileTest, TheTextIsTheSameInEveryLocale) {
  const std::string text = CostText(kCosts);
  const test::OddLocale odd;
  EXPECT_EQ(CostText(kCosts), text);
}

}  // namespace
}  // namespace engine::costmodel
