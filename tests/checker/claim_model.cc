#include "claim_model.h"

#include "explorer.h"

namespace checker {

namespace {
constexpr uint8_t Bit(int i) { return static_cast<uint8_t>(1u << i); }
}  // namespace

void ClaimModel::Begin() {
  Explorer& explorer = Explorer::current();
  s_.free = static_cast<uint8_t>(ops() > 1 ? ops() - 1 : 1);
  for (int p = 0, op = 0; p < 2 && scenario_.pushes[p]; op += scenario_.pushes[p++]) {
    const int last = op + scenario_.pushes[p];
    explorer.Start(explorer.AddThread("pusher" + std::to_string(p), [this, op, last] { PusherMain(op, last); }));
  }
  explorer.Start(explorer.AddThread("shutdown", [this] { ShutdownMain(); }));
  for (int op = 0; op < ops(); ++op)
    handle_[op] = explorer.AddThread("handle" + std::to_string(op), [this, op] { HandleMain(op); });
}

const char* ClaimModel::AtRest() {
  if (s_.started != s_.registered) return "a registered op was never started";
  for (const Block& block : s_.block)
    if (block.taken) return "a block was never given back";
  return nullptr;
}

std::string ClaimModel::NameOf(const Event& event) const {
  std::string text = event.remark;
  if (const size_t at = text.find('%'); at != text.npos) text.replace(at, 1, std::to_string(event.before));
  return text;
}

void ClaimModel::Step(const char* what, int number) {
  Explorer::current().Point();
  Explorer::current().Remark(what, static_cast<uint64_t>(number));
}

void ClaimModel::PusherMain(int first, int last) {
  for (int op = first; op < last; ++op) {
    Explorer::current().PauseWhile<uint8_t>(&s_.free, 0);
    --s_.free;
    int at = 0;
    while (s_.block[at].taken) ++at;
    s_.block_of[op] = static_cast<uint8_t>(at);
    Block& block = s_.block[at];
    block.taken = 1;
    Step("op % has a claim", op);
    block.called = scenario_.fault == ClaimFault::kOpenAtOnce ? 0 : 1;
    Step("op % is named in it", op);
    block.op = static_cast<uint8_t>(op);
    Step("the claim of op % is counted", op);
    block.refs = 1;
    if (op == scenario_.refused) {
      Step("op % is refused", op);
      Drop(block);
      continue;
    }
    Step("op % is registered", op);
    s_.registered |= Bit(op);
    if (scenario_.fault != ClaimFault::kOpenAtOnce) {
      Step("the claim of op % may be taken", op);
      block.called = 0;
    }
    Explorer::current().Start(handle_[op]);
  }
}

void ClaimModel::HandleMain(int op) {
  Block& block = s_.block[s_.block_of[op]];
  Step("the handle of op % is dropped", op);
  if (Call(block)) StartOp(op);
  Drop(block);
}

void ClaimModel::ShutdownMain() {
  for (int walk = 0; walk < scenario_.shutdowns; ++walk) {
    for (Block& block : s_.block) {
      if (&block - s_.block.data() >= std::max(1, ops() - 1)) break;
      Step("shutdown looks at a block");
      if (block.refs == 0) continue;
      if (scenario_.fault != ClaimFault::kUncounted) ++block.refs;  // the compare-exchange that found it not to be 0
      Step("shutdown calls it");
      if (Call(block)) StartOp(block.op);
      if (scenario_.fault != ClaimFault::kUncounted) Drop(block);
    }
  }
}

// One exchange.
bool ClaimModel::Call(Block& block) {
  if (!block.taken || block.refs == 0) Explorer::current().Fail("a free block was written");
  if (block.called) return false;
  block.called = 1;
  return true;
}

void ClaimModel::StartOp(int op) {
  if (!(s_.registered & Bit(op))) Explorer::current().Fail("an op was started that has no place");
  if (s_.started & Bit(op)) Explorer::current().Fail("an op was started twice");
  s_.started |= Bit(op);
}

void ClaimModel::Drop(Block& block) {
  Step("a count is dropped");
  if (--block.refs) return;
  Step("the block is given back");
  block.taken = 0;
  ++s_.free;
}

}  // namespace checker
