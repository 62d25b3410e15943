// Model: the CostModel of one plan. For each shape class it counts steps, measures them in the window, makes a
// schedule, compares it, and decides.
//
// Threads:   one lock guards everything. The first Start after the window makes the schedule, outside the lock. A fork
//            takes the locks of all models.
// Ownership: the model owns the plan with the schedule. It never owns the plan that owns the model.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/spi/cost_model.h"
#include "samples.h"
#include "schedule_guard.h"

namespace engine::costmodel {

class Model final : public CostModel {
 public:
  // Runs of further shape classes go as compiled, and Explain says so.
  static constexpr size_t kMostShapes = 16;
  // Nanoseconds: what a dispatch costs at least, if none or few were measured: one lock, and cache lines that move
  // between two cores.
  static constexpr double kLeastDispatch = 100;

  Model(const Plan& plan, int workers);
  ~Model() override;
  void LockForFork() { mu_.lock(); }
  void UnlockAfterFork() { mu_.unlock(); }
  void ForgetRuns();  // in a fork's child: the runs that are measured or compared now are the parent's

  Explanation Explain(const Plan& plan, uint64_t shape, std::span<const NodeTime> run) const override;
  std::vector<NodeCost> Costs() const override;
  void Save(const std::string& path) const override;
  void Load(const std::string& path) override;
  void Remeasure() override;
  Step Begin(const Plan& plan, CostWindow window, uint64_t shape) override;
  void End(uint64_t number, const Report& report) noexcept override;

 private:
  using State = Explanation::State;
  struct Shape {
    explicit Shape(size_t keys) : samples(keys) {}
    State state = State::kWaiting;
    bool building = false;
    uint32_t steps = 0;
    uint32_t in_flight = 0;        // measured runs that have not ended
    uint32_t issued = 0;           // measured runs; if some nodes are wide, every other one is narrow
    uint32_t failed = 0;           // measured runs that have ended and failed
    std::vector<Samples> samples;  // by key
    Samples dispatches, durations;
    // Once the schedule is made.
    std::vector<Estimate> costs;  // by key
    double dispatch = 0;
    Schedule schedule;
    Plan scheduled;
    ScheduleGuard guard;
    std::string said;
  };
  struct OpenStep {                // has been begun, and not ended
    std::shared_ptr<Shape> shape;  // after a Remeasure, the old one, which nobody looks at any more
    bool compared;
    bool narrow;
    uint64_t turn;
  };

  std::shared_ptr<Shape> FindShape(uint64_t shape);
  bool TakeLoaded(uint64_t shape, Shape& into) const;
  void Build(const Plan& plan, Shape& shape, std::unique_lock<std::mutex>& lock);
  Step Issue(const std::shared_ptr<Shape>& shape, Step step, bool compared, uint64_t turn);
  void Tell(uint64_t number, const Report& report);
  void Measured(Shape& shape, const Report& report, bool narrow);
  void Decided(Shape& shape);
  std::string SaidOf(const Shape& s) const;
  std::vector<double> CostsOf(const std::vector<Estimate>& costs, std::span<const uint8_t> threads) const;
  std::vector<uint8_t> WidthsOf(const std::vector<Estimate>& costs) const;

  const int workers_;
  // Of the graph, by node.
  std::vector<std::string> keys_;
  std::vector<uint32_t> key_of_, kind_, task_of_;
  // By node: of those that may use several threads, the key of what they cost with so many; kNoKey: the others.
  static constexpr uint32_t kNoKey = UINT32_MAX;
  std::vector<uint32_t> wide_key_of_, threads_;
  std::vector<uint32_t> unit_;  // nodes that are scheduled together have the number of their first node
  enum class Measure : uint8_t { kProcessor, kClock, kDevice };
  std::vector<Measure> measure_;
  std::vector<Graph::Edge> edges_;  // reduced
  const Dag dag_;

  mutable std::mutex mu_;
  CostWindow window_;
  std::map<uint64_t, std::shared_ptr<Shape>> shapes_;
  std::map<std::pair<uint64_t, std::string>, NodeCost> loaded_;
  std::unordered_map<uint64_t, OpenStep> open_steps_;  // by Step::number
  uint64_t next_number_ = 1;
  uint64_t crowded_out_ = 0;                      // steps of shape classes beyond kMostShapes
  double clock_nanos_ = 0, processor_nanos_ = 0;  // what reading each clock costs; 0: not measured yet
};

}  // namespace engine::costmodel
