#include "engine/value.h"

#include "support/engine_test.h"

namespace engine::test {
namespace {

struct Counted {
  explicit Counted(int* alive) : alive_(alive) { ++*alive_; }
  Counted(Counted&& other) noexcept : alive_(other.alive_) { ++*alive_; }
  ~Counted() { --*alive_; }
  int* alive_;
};
struct Large : Counted {
  using Counted::Counted;
  char text[200] = {};
};

TEST(ValueTest, HoldsMovesAndDestroysSmallAndLargeObjects) {
  int alive = 0;
  {
    Value small{Counted(&alive)}, large{Large(&alive)};
    EXPECT_EQ(alive, 2);
    Value moved = std::move(small);
    EXPECT_FALSE(small);
    EXPECT_EQ(alive, 2);
    moved = std::move(large);
    EXPECT_EQ(alive, 1);
    EXPECT_TRUE(moved.If<Large>());
    EXPECT_FALSE(moved.If<Counted>());
    Value& self = moved;
    moved = std::move(self);
    EXPECT_EQ(alive, 1);
    moved.Take<Large>();
    EXPECT_EQ(alive, 0);
    EXPECT_FALSE(moved);
    moved.Emplace<Counted>(&alive);
  }
  EXPECT_EQ(alive, 0);
}

TEST(ValueTest, WrongTypeNamesBoth) {
  Value v = 3;
  const std::string text = RefusalOf([&] { v.Get<double>(); });
  EXPECT_TRUE(Has(text, "'double'"));
  EXPECT_TRUE(Has(text, "'int'"));
  EXPECT_TRUE(Has(RefusalOf([] { Value().Get<int>(); }), "nothing"));
  EXPECT_EQ(v.Get<int>(), 3);
}

}  // namespace
}  // namespace engine::test
