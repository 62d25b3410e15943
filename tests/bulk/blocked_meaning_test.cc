// Bulks with many members that wait for ops outside, which other threads let go in any order: nothing but speed may
// depend on which of them stay together. Random programs against the serializability oracle.
#include "engine/bulk.h"
#include "stress/oracle.h"
#include "support/on_device.h"
#include "support/seed.h"

namespace engine::test {
namespace {

class BlockedBulks {
 public:
  BlockedBulks(int workers, uint32_t vars, uint64_t seed) : random_(seed), oracle_(vars), eng_(OnDevice(workers)) {
    for (uint32_t v = 0; v < vars; ++v) vars_.push_back(eng_.NewVar());
  }

  // The first contradiction, or "".
  std::string Run(int bulks, size_t members) {
    for (int i = 0; i < bulks; ++i) {
      std::vector<HeldOp> outside;
      for (size_t k = 0; k < members / 2; ++k) outside.push_back(Hold());
      {
        Bulk bulk(eng_, static_cast<int>(members));
        for (size_t k = 0; k < members; ++k) {
          Push(4);
          if (random_.OneIn(8)) outside.push_back(Hold());  // it may queue behind members
        }
      }
      LetGo(outside);
      if (random_.OneIn(4)) eng_.WaitAll();  // else the next bulk is behind what is left of this one
    }
    eng_.WaitAll();
    return oracle_.Check();
  }

 private:
  struct Sets {
    std::vector<Var> reads, updates, writes;
  };

  // Calls submit with the description and the body of an op on up to `most` Vars.
  template <class F>
  auto Make(uint64_t most, Placement place, F&& submit) {
    std::vector<Use> uses;
    auto sets = std::make_shared<Sets>();
    for (uint64_t n = 1 + random_.Below(most); n > 0; --n) {
      const auto var = static_cast<uint32_t>(random_.Below(vars_.size()));
      if (std::any_of(uses.begin(), uses.end(), [&](const Use& u) { return u.var == var; })) continue;
      uses.push_back({var, random_.OneIn(2)   ? AccessMode::kRead
                           : random_.OneIn(2) ? AccessMode::kUpdate
                                              : AccessMode::kWrite});
      const AccessMode mode = uses.back().mode;
      (mode == AccessMode::kRead     ? sets->reads
       : mode == AccessMode::kUpdate ? sets->updates
                                     : sets->writes)
          .push_back(vars_[var]);
    }
    OpRecord* const record = oracle_.NewRecord(std::move(uses));
    const OpDesc desc = {.reads = sets->reads, .updates = sets->updates, .writes = sets->writes, .place = place};
    record->push_begin = oracle_.Tick();
    auto pushed = submit(desc, [this, record, sets](RunContext& ctx) {
      for (Use& use : record->uses) use.version = ctx.version(vars_[use.var]);
      oracle_.Run(*record, false);
    });
    record->push_end = oracle_.Tick();
    return pushed;
  }
  HeldOp Hold() {
    return Make(2, random_.OneIn(4) ? Gpu(0) : Cpu(),
                [&](const OpDesc& desc, auto&& body) { return eng_.PushHeld(desc, std::move(body)); });
  }
  void Push(uint64_t most) {
    Make(most, random_.OneIn(6) ? Cpu() : Gpu(0), [&](const OpDesc& desc, auto&& body) {
      eng_.Push(desc, std::move(body));
      return 0;
    });
  }

  // By two threads, in any order, while the bulk may still be at its beginning.
  void LetGo(std::vector<HeldOp>& outside) {
    for (size_t left = outside.size(); left > 1; --left) std::swap(outside[left - 1], outside[random_.Below(left)]);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 2; ++t)
      threads.emplace_back([&, t] {
        for (size_t i = t; i < outside.size(); i += 2) outside[i].Release();
      });
    for (auto& t : threads) t.join();
  }

  Random random_;
  Oracle oracle_;
  Engine eng_;  // ends before what its ops use
  std::vector<Var> vars_;
};

class BlockedBulkMeaningTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, BlockedBulkMeaningTest, testing::Values(0, 1, 2, 4),
                         [](const auto& instance) { return std::to_string(instance.param); });
TEST_P(BlockedBulkMeaningTest, ManyMembersThatWaitOutsideAreSerializable) {
  SCOPED_TRACE(SeedLine());
  constexpr uint32_t kVars[] = {3, 12, 60, 400};
  constexpr size_t kMembers[] = {4, 15, 60, 250};
  for (uint64_t i = 0; i < 16; ++i) {
    const uint32_t vars = kVars[i % 4];
    const size_t members = kMembers[i / 4];
    const int bulks = static_cast<int>((kSanitized ? 250 : 1000) / members);
    EXPECT_EQ(BlockedBulks(GetParam(), vars, Seed() + i).Run(bulks, members), "")
        << vars << " Vars, " << members << " members";
  }
}

}  // namespace
}  // namespace engine::test
