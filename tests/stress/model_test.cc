// One pusher makes values and errors deterministic: random programs against a serial model written from the contract.
#include "support/engine_test.h"
#include "support/seed.h"
#include "watchdog.h"

namespace engine::test {
namespace {

struct Poison {
  std::string root;
  std::vector<std::string> path;
  bool operator==(const Poison&) const = default;
};

struct ModelVar {
  uint64_t value = 1;
  uint64_t version = 0;
  std::optional<Poison> poison;
};

struct Step {
  enum Kind { kPush, kAsync, kOperator, kHeld, kClear, kWait, kDeleteAndRenew } kind = kPush;
  std::string name;
  std::vector<size_t> reads, updates, writes;  // may name a Var several times
  bool fails = false, always = false, cancelled = false;
};

std::vector<size_t> SomeVars(Random& random, size_t vars, uint64_t most) {
  std::vector<size_t> set;
  for (uint64_t n = random.Below(most + 1); n > 0; --n) set.push_back(random.Below(vars));
  return set;
}

Step RandomStep(Random& random, size_t vars, int number) {
  Step s;
  constexpr Step::Kind kKinds[] = {Step::kPush, Step::kPush,  Step::kPush, Step::kAsync,         Step::kOperator,
                                   Step::kHeld, Step::kClear, Step::kWait, Step::kDeleteAndRenew};
  s.kind = kKinds[random.Below(9)];
  if (s.kind >= Step::kWait && !random.OneIn(6)) s.kind = Step::kPush;
  s.name = "op" + std::to_string(number);
  s.reads = SomeVars(random, vars, 3);
  s.updates = SomeVars(random, vars, 2);
  s.writes = SomeVars(random, vars, 2);
  if (s.kind >= Step::kClear) s.reads = {random.Below(vars)};
  s.fails = random.OneIn(15);
  s.always = random.OneIn(8);
  s.cancelled = random.OneIn(25);
  return s;
}

// The value that an op leaves: the same arithmetic for the model and for the engine's ops.
uint64_t Inputs(const Step& s, const std::function<uint64_t(size_t)>& value) {
  uint64_t h = std::hash<std::string>()(s.name);
  for (size_t v : s.reads) h = h * 31 + value(v);
  for (size_t v : s.updates) h = h * 31 + value(v);
  return h;
}

void Model(std::vector<ModelVar>& vars, const Step& s) {
  if (s.kind == Step::kClear) return vars[s.reads[0]].poison.reset();
  if (s.kind == Step::kDeleteAndRenew) return void(vars[s.reads[0]] = ModelVar{vars[s.reads[0]].value, 0, {}});
  if (s.kind == Step::kWait) return;
  // Each Var once: more than one access mode, one of them a write, is Update.
  std::vector<int> roles(vars.size(), 0);
  for (size_t v : s.reads) roles[v] |= 1;
  for (size_t v : s.updates) roles[v] |= 2;
  for (size_t v : s.writes) roles[v] |= 4;
  std::vector<size_t> listing = s.reads;
  listing.insert(listing.end(), s.updates.begin(), s.updates.end());
  listing.insert(listing.end(), s.writes.begin(), s.writes.end());
  const auto is_write = [&](size_t v) { return roles[v] == 4; };
  const auto changes = [&](size_t v) { return roles[v] > 1; };

  std::optional<Poison> error;
  if (!s.always && s.cancelled) {
    error = Poison{s.name, {}};
  } else if (!s.always) {
    for (size_t v : listing) {
      if (is_write(v) || !vars[v].poison) continue;
      error = vars[v].poison;
      if (error->path.size() < 16) error->path.push_back(s.name);
      break;
    }
  }
  const bool runs = !error;
  uint64_t inputs = 0;
  if (runs) inputs = Inputs(s, [&](size_t v) { return vars[v].value; });
  if (runs && s.fails) error = Poison{s.name, {}};
  for (size_t v = 0; v < vars.size(); ++v) {
    if (!changes(v)) continue;
    ++vars[v].version;
    if (runs && !s.fails) vars[v].value = inputs + v;
    if (error) {
      vars[v].poison = error;
    } else if (is_write(v)) {
      vars[v].poison.reset();
    }
  }
}

class Programs {
 public:
  Programs(EngineOptions options, size_t vars) : eng_(std::move(options)), values_(vars, 1) {
    for (size_t i = 0; i < vars; ++i) vars_.push_back(eng_.NewVar("v" + std::to_string(i)));
    cancelled_.Cancel();
  }

  void Push(const Step& s) {
    const auto pick = [&](const std::vector<size_t>& set) {
      std::vector<Var> out;
      for (size_t v : set) out.push_back(vars_[v]);
      return out;
    };
    const auto reads = pick(s.reads), updates = pick(s.updates), writes = pick(s.writes);
    const auto body = [this, s](RunContext&) {
      const uint64_t inputs = Inputs(s, [&](size_t v) { return values_[v]; });
      if (s.fails) throw std::runtime_error("failure of " + s.name);
      for (const auto* set : {&s.updates, &s.writes})
        for (size_t v : *set) values_[v] = inputs + v;
    };
    const Name name = Name::Intern(s.name);
    CancelScope* const scope = s.cancelled ? &cancelled_ : nullptr;
#define DESC \
  { .name = name, .reads = reads, .updates = updates, .writes = writes, .run_always = s.always, .cancel = scope }
    switch (s.kind) {
      case Step::kPush: eng_.Push(DESC, body); break;
      case Step::kAsync:
        eng_.PushAsync(DESC, [body](RunContext& ctx, Completion done) {
          body(ctx);
          done();
        });
        break;
      case Step::kOperator: eng_.Push(eng_.NewOperator(DESC, body)); break;
      case Step::kHeld: held_.push_back(eng_.PushHeld(DESC, body)); break;
      case Step::kClear: eng_.ClearError(vars_[s.reads[0]]); break;
      case Step::kWait:
        held_.clear();
        Error(s.reads[0]);
        break;
      case Step::kDeleteAndRenew:  // the value stays: it belongs to the program, and the new Var must wait for the old
        held_.clear();
        try {
          eng_.WaitToWrite(vars_[s.reads[0]]);
        } catch (const OpError&) {
        }
        eng_.Delete(vars_[s.reads[0]]);
        vars_[s.reads[0]] = eng_.NewVar("renewed");
        break;
    }
#undef DESC
    if (held_.size() > 3) held_.clear();
  }

  std::optional<Poison> Error(size_t v) {
    held_.clear();
    try {
      eng_.Wait(vars_[v]);
    } catch (const OpError& e) {
      Poison p{e.op(), {}};
      for (const auto& hop : e.path()) p.path.push_back(hop.op);
      return p;
    }
    return {};
  }
  void Finish() {
    held_.clear();
    for (;;) try {
        return eng_.WaitAll();
      } catch (const OpError&) {
      }
  }
  uint64_t value(size_t v) const { return values_[v]; }
  uint64_t version(size_t v) const { return vars_[v].version(); }

 private:
  CancelScope cancelled_;
  Engine eng_;
  std::vector<uint64_t> values_;
  std::vector<Var> vars_;
  std::vector<HeldOp> held_;
};

TEST(ModelTest, ValuesAndErrorsAreThoseOfTheSerialModel) {
  printf("seed %llu\n", static_cast<unsigned long long>(Seed()));
  for (uint64_t program = 0; program < (kSanitized ? 15 : 200); ++program) {
    Random random(Seed() + program);
    constexpr int kWorkers[] = {0, 1, 2, 4, 8};
    EngineOptions o = Quiet(kWorkers[random.Below(5)]);
    if (random.OneIn(5)) o.policy = Policy::kNaive;
    if (random.OneIn(3)) o.max_pending = 1 + random.Below(20);
    const size_t n = 1 + random.Below(10);
    const std::string what = SeedLine() + ", program " + std::to_string(program);
    Watchdog watchdog(what, 60);
    std::vector<ModelVar> model(n);
    Programs engine(o, n);
    for (int i = 0; i < 400; ++i) {
      const Step s = RandomStep(random, n, i);
      Model(model, s);
      engine.Push(s);
    }
    engine.Finish();
    for (size_t v = 0; v < n; ++v) {
      ASSERT_EQ(engine.version(v), model[v].version) << what << ", Var " << v;
      ASSERT_EQ(engine.value(v), model[v].value) << what << ", Var " << v;
      const auto error = engine.Error(v);
      ASSERT_EQ(error.has_value(), model[v].poison.has_value()) << what << ", Var " << v;
      if (!error) continue;
      ASSERT_EQ(error->root, model[v].poison->root) << what << ", Var " << v;
      ASSERT_EQ(error->path, model[v].poison->path) << what << ", Var " << v;
    }
  }
}

}  // namespace
}  // namespace engine::test
