// Random chains of stages, on threads of their own or on a shared pool, with ends, errors, cancels and slow or dead sides at
// random points, against what one thread alone would see. Nothing may be lost, repeated or reordered, every error must come
// exactly where it belongs, and no thread may be left.
#include <atomic>
#include <memory>
#include <set>

#include "engine/stage.h"
#include "support/engine_test.h"
#include "support/seed.h"
#include "support/threads.h"

namespace engine::test {
namespace {

struct Bad : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One level: what it does to the items that reach it, by their number in the source.
struct Level {
  StageOptions options;
  std::set<int> skipped;
  int fails_at = -1;
  int closes_at = -1;
};
struct RandomPipeline {
  int length = 0;
  std::vector<Level> levels;
  int cancel_after = -1;             // items that the consumers take before they cancel the last stage
  int hangs_at = -1;                 // item at which the source blocks, once it has cancelled its stage
  std::vector<int> dies_after = {};  // by client: items that it takes before it stops asking; -1: it goes on
  uint64_t seed = 0;
};

RandomPipeline Make(uint64_t seed) {
  Random random(seed);
  RandomPipeline p{.length = static_cast<int>(random.Below(60)), .levels = {}, .seed = seed};
  p.levels.resize(1 + random.Below(3));
  for (size_t i = 0; i < p.levels.size(); ++i) {
    Level& level = p.levels[i];
    level.options = {.name = "level-" + std::to_string(i),
                     .capacity = 1 + random.Below(4),
                     .capacity_bytes = random.OneIn(3) ? 1 + random.Below(100) : 0,
                     .num_threads = 1 + static_cast<int>(random.Below(4)),
                     .num_clients = 16,
                     .ignored_exception_types = AnyOf<Bad>(),
                     .autotune = random.OneIn(4),
                     .max_threads = 4};
    if (random.OneIn(3)) {
      for (int n = 0; n < p.length; ++n) {
        if (random.OneIn(5)) level.skipped.insert(n);
      }
    }
    if (random.OneIn(4)) level.fails_at = static_cast<int>(random.Below(60));
    if (random.OneIn(6)) level.closes_at = static_cast<int>(random.Below(60));
  }
  p.dies_after.resize(1 + random.Below(3), -1);
  for (int& after : p.dies_after) {
    if (random.OneIn(5)) after = static_cast<int>(random.Below(30));
  }
  if (random.OneIn(4)) p.cancel_after = static_cast<int>(random.Below(40));
  if (random.OneIn(6)) {
    p.hangs_at = static_cast<int>(random.Below(60));
  } else if (random.OneIn(4)) {  // not with a source that blocks: it would keep its seat in the pool
    static const StagePool pools[] = {
        MakeStagePool({.global_name = "random, one at a time"}),
        MakeStagePool({.global_name = "random, three at a time", .inter_op_threads_num = 3}),
    };
    for (Level& level : p.levels) level.options.pool = pools[random.Below(2)];
  }
  return p;
}

// What one thread alone would see: the items, and the error or "end".
struct Outcome {
  std::vector<int> items;
  std::string last = "end";
};
Outcome Oracle(const RandomPipeline& p) {
  Outcome out;
  for (int n = 0; n < p.length; ++n) {
    bool reaches = true;
    for (size_t i = 0; i < p.levels.size() && reaches; ++i) {
      const Level& level = p.levels[i];
      if (level.fails_at == n) return out.last = "broken at " + std::to_string(n) + " in " + level.options.name, out;
      if (level.closes_at == n) return out;
      reaches = !level.skipped.contains(n);
    }
    if (reaches) out.items.push_back(n);
  }
  return out;
}

void Dawdle(uint64_t seed, int n) {
  Random random(seed + static_cast<uint64_t>(n));
  for (uint64_t i = random.Below(4); i > 0; --i) std::this_thread::yield();
}

void Check(const RandomPipeline& p) {
  std::atomic<int> alive{0};
  struct Item {
    Item(int number, std::atomic<int>& count) : n(number), alive(&count) { ++*alive; }
    Item(Item&& other) noexcept : n(other.n), alive(std::exchange(other.alive, nullptr)) {}
    ~Item() {
      if (alive) --*alive;
    }
    size_t bytes() const { return 20; }
    int n;
    std::atomic<int>* alive;
  };
  Outcome seen;
  bool all_dead = false;
  Gate hung;
  {
    std::vector<std::unique_ptr<Stage<Item>>> chain;
    Stage<Item>* first = nullptr;
    for (const Level& level : p.levels) {
      const auto work = [&p, &level](Item item) {
        Dawdle(p.seed, item.n);
        if (level.fails_at == item.n) {
          throw Broken("broken at " + std::to_string(item.n) + " in " + level.options.name);
        }
        if (level.closes_at == item.n) throw EndOfData();
        if (level.skipped.contains(item.n)) throw Bad("bad row");
        return item;
      };
      if (chain.empty()) {
        chain.push_back(std::make_unique<Stage<Item>>(
            level.options,
            [&, n = 0]() mutable -> std::optional<Item> {
              if (n == p.length) return {};
              if (n == p.hangs_at) {
                first->Cancel();
                hung.Wait();
              }
              return Item(n++, alive);
            },
            work));
        first = chain.front().get();
      } else {
        chain.push_back(std::make_unique<Stage<Item>>(
            level.options, [&before = *chain.back()] { return before.Take(); }, work));
      }
    }
    // Clients that take together; what they got is put in order by when they got it, so items of one client are ordered.
    std::vector<Outcome> mine(p.dies_after.size());
    std::atomic<int> taken{0};
    std::vector<std::thread> clients;
    for (Outcome& my : mine) {
      clients.emplace_back([&, client = &my - mine.data()] {
        try {
          while (static_cast<int>(my.items.size()) != p.dies_after[static_cast<size_t>(client)]) {
            if (p.cancel_after >= 0 && taken >= p.cancel_after) chain.back()->Cancel();
            auto item = chain.back()->Take();
            if (!item) return;
            my.items.push_back(item->n);
            ++taken;
            Dawdle(p.seed ^ static_cast<uint64_t>(client), item->n);
          }
          my.last = "dead";
        } catch (const CancelledError&) {
          my.last = "cancelled";
        } catch (const Broken& error) {
          my.last = error.what();
        }
      });
    }
    for (auto& client : clients) client.join();
    hung.Open();
    for (const Outcome& my : mine) {
      if (my.last != "dead") seen.last = my.last;
    }
    all_dead = std::all_of(mine.begin(), mine.end(), [](const Outcome& my) { return my.last == "dead"; });
    for (const Outcome& my : mine) {
      EXPECT_TRUE(my.last == "dead" || my.last == seen.last) << my.last << " and " << seen.last;
      EXPECT_TRUE(std::is_sorted(my.items.begin(), my.items.end()));
      seen.items.insert(seen.items.end(), my.items.begin(), my.items.end());
    }
    std::sort(seen.items.begin(), seen.items.end());
    if (seen.last != "cancelled" && !all_dead) {
      const StageStats stats = chain.back()->stats();
      EXPECT_EQ(stats.delivered, seen.items.size());
      EXPECT_EQ(stats.fill, 0u);
    }
    while (!chain.empty()) chain.pop_back();  // readers before what they read from
  }
  const Outcome expected = Oracle(p);
  if (all_dead || ((p.cancel_after >= 0 || p.hangs_at >= 0) && seen.last == "cancelled")) {
    ASSERT_LE(seen.items.size(), expected.items.size());
    EXPECT_TRUE(std::equal(seen.items.begin(), seen.items.end(), expected.items.begin()));
  } else {
    EXPECT_EQ(seen.items, expected.items);
    EXPECT_EQ(seen.last, expected.last);
  }
  EXPECT_EQ(alive, 0);
}

TEST(RandomPipelineTest, SeesWhatOneThreadAloneWouldSee) {
  SCOPED_TRACE(SeedLine());
  Random seeds(Seed());
  const int before = Threads();
  for (int i = 0; i < (kSanitized ? 80 : 500) && !testing::Test::HasFailure(); ++i) {
    const uint64_t seed = seeds.Next();
    SCOPED_TRACE("program " + std::to_string(i) + " of seed " + std::to_string(seed));
    Check(Make(seed));
  }
  AwaitThreads(before);
}

// The same without order: the set is what matters, and what is resumed behind the position repeats and loses nothing.
TEST(RandomPipelineTest, ResumingFromThePositionRepeatsAndLosesNothing) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 1);
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    const int length = static_cast<int>(random.Below(50));
    std::vector<int> all;
    int position = 0;
    for (bool ended = false; !ended;) {  // each round is a process that takes some and stops at a checkpoint
      const StageOptions options{.capacity = 1 + random.Below(4),
                                 .num_threads = 1 + static_cast<int>(random.Below(4)),
                                 .ignored_exception_types = AnyOf<Bad>()};
      Stage<int> stage(
          options,
          [n = position, length]() mutable -> std::optional<int> {
            if (n == length) return {};
            return n++;
          },
          [](int n) {
            if (n % 5 == 3) throw Bad("bad row");
            return n;
          });
      for (uint64_t left = 1 + random.Below(10); left > 0 && !ended; --left) {
        const auto item = stage.Take();
        if (item) {
          all.push_back(*item);
        } else {
          ended = true;
        }
      }
      position += static_cast<int>(stage.stats().position);
    }
    std::vector<int> expected;
    for (int n = 0; n < length; ++n) {
      if (n % 5 != 3) expected.push_back(n);
    }
    EXPECT_EQ(all, expected);
  }
}

}  // namespace
}  // namespace engine::test
