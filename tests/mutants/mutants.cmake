# name, file, the test that must notice, what is changed and into what. All of it shipped text: if a change of the
# engine moves it, the configuration says so, and the mutant is to be brought up to date.
engine_mutant(dropped_wake engine/sched/pool.cc "Workers/WaitingTest.*/1"
  "FutexWake(worker->asleep, 1);"
  "if (wakeups_.load() % 8) FutexWake(worker->asleep, 1);")
engine_mutant(double_completion engine/core/completion.cc "Workers/CompletionTest.S*"
  "if (state_->called.exchange(1, std::memory_order_acq_rel) == 0) {"
  "if (state_->called.exchange(0, std::memory_order_acq_rel) == 0) {")
engine_mutant(dropped_completion_failure engine/core/completion.cc "Workers/CompletionTest.Dropping*"
  "!= 1) return;"
  "!= 99) return;")
engine_mutant(dropped_drain_note engine/core/drain.cc "Workers/WaitingTest.*/1"
  "void EngineCore::NoteDrain() {"
  "void EngineCore::NoteDrain() { return;")
engine_mutant(untold_drain engine/core/drain.cc "WaitAllTest.*"
  "  if (untold && "
  "  if (false && untold && ")
engine_mutant(dropped_driver_wake engine/core/wait.cc "Workers/CompletionTest.CalledOnAForeign*/0"
  "FutexWake(*waiter.word, kEveryone);"
  "")
engine_mutant(driver_leaves_in_silence engine/core/wait.cc "DriverTest.AWait*"
  "if (caller_pool_used_.load(std::memory_order_relaxed) && pool(kCallerPool).HasReady()) WakeDriver();"
  "")
engine_mutant(body_under_the_scopes_of_who_waits engine/core/wait.cc "Workers/DrivingTest.ABodyPushesUnderNo*/0"
  "  const BodyScopes aside;"
  "")
engine_mutant(large_blocks_unlisted engine/base/arena.cc "Workers/WatchdogTest.NamesOpsOfManyVars*"
  "    if (wanted(large.cls)) visit(large.block);"
  "    if (false) visit(large.block);")
engine_mutant(failed_beside_its_body engine/core/completion.cc "Workers/ShutdownTest.TimeoutStartsNothing*"
  "if (state->returned.load(std::memory_order_acquire) && "
  "if (")
engine_mutant(completion_of_the_parent engine/core/completion.cc "*ForkInertTest.*"
  "  if (state_->Inherited()) return;"
  "")
engine_mutant(lost_unseen_error engine/core/execute.cc "Workers/UnseenErrorsTest.*"
  "errors_.Add(error);"
  "(void)0;")
engine_mutant(last_listed_error engine/core/execute.cc "Workers/ErrorsTest.OfSeveral*"
  "a.listed() >= listed"
  "(first && a.listed() < listed)")
engine_mutant(update_clears_poison engine/core/execute.cc "Workers/ErrorsTest.RunAlways*"
  "} else if (a.mode() == Mode::kWrite) {"
  "} else {")
engine_mutant(wait_for_own_var engine/core/wait.cc "Workers/NestedWaitTest.WaitForAVarOfItsOwn*"
  "if (FindAccess(f->op, core))"
  "if (false)")
engine_mutant(unbounded_pending engine/core/back_pressure.cc "Workers/BackPressureTest.PendingOps*/0"
  "  WaitForRoom(slot);
  return true;"
  "  return true;")
engine_mutant(fork_without_poison engine/core/fork.cc "Workers/ForkTest.VarsWithPending*"
  "      SetPoison(var, error);"
  "")
engine_mutant(needed_chain_not_released engine/core/held_chain.cc "Workers/HeldChainTest.AWaitOfAnyThread*"
  "  while (!slot.needed.empty()) {  // one by one: a release may push"
  "  slot.needed.clear();
  while (!slot.needed.empty()) {")
engine_mutant(chain_not_left_by_a_wait engine/core/held_chain.cc "Workers/HeldChainTest.AMemberMayWaitForALaterOne/1"
  "  if (!op->extra.more_behind) return;"
  "  if (op) return;")
engine_mutant(several_holders_not_released engine/core/held_chain.cc "Workers/HeldChainTest.HeldReadersOfSeveral*"
  "      ReleaseAllChains(mine);"
  "      (void)0;")
engine_mutant(started_member_stays_in_its_chain engine/core/held_chain.cc "Workers/HeldChainTest.AMemberOfAnotherChain*"
  "  TakeFirst(*pass.slot, chain);"
  "  if (op->extra.more_behind) {
    chain.first = op->extra.next;
  } else {
    pass.slot->var_cache.Return(kChainClass, &chain);
  }")
engine_mutant(bulk_keeps_other_placements bulk/bulk.cc "Workers/BulkTest.AnotherPlacement*"
  "if (!Same(desc.place, place_) || desc.priority != priority_) Release();"
  "")
engine_mutant(bulk_without_limit bulk/bulk.cc "BulkCounters.AThousand*"
  "if (held >= limit_) Release();"
  "")
engine_mutant(bulk_never_opened bulk/bulk.cc "BulkClock.*"
  "    Opened();"
  "")
engine_mutant(silence_that_never_ends bulk/silence.cc "Workers/BulkTest.AMillisecond*"
  "for (const auto& bulk : silent) bulk->ops.Release();"
  "")
engine_mutant(silence_too_early bulk/silence.cc "Workers/BulkTest.AMillisecond*"
  "        bulk->seen = mark;
        continue;"
  "        bulk->seen = mark;")
engine_mutant(lost_device_not_drained engine/device/lost.cc "DeviceFaults.ADeviceThatIsLostAndWorksOn*"
  "why.sticky() ? Loss::kGone : Loss::kEnds"
  "Loss::kGone")
engine_mutant(run_nobody_waits_for engine/device/retire.cc "DevicePlans.ARunThatNobodyWaitsFor*"
  "asked = op->extra.flags & kSettleOp ?"
  "asked = false ?")
engine_mutant(event_used_again_too_early engine/device/retire.cc "DeviceBulk.EventsAreMadeOnce*"
  "on.records.front().seq <= retired"
  "on.records.front().seq <= retired + 1")
engine_mutant(waiters_that_nobody_tells_of engine/device/channel.cc "DevicePlans.WhoeverComesToWait*"
  "  attention_.store(true);  // seq_cst, before the look at the pace. Partner: the looks in ThreadMain
  Kick();"
  "")
engine_mutant(lane_made_of_a_lost_device engine/device/devices.cc "DeviceFaults.AnOpWhoseLaneIsMade*"
  "if (device.lost.load()) made->good.store(0, std::memory_order_release);"
  "")
