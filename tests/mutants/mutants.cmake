# name, file, the test that must notice, what is changed and into what. All of it shipped text: if a change of the
# engine moves it, the configuration says so, and the mutant is to be brought up to date.
engine_mutant(dropped_wake pool.cc "Workers/WaitingTest.*/1"
  "FutexWake(worker->asleep, 1);"
  "if (wakeups_.load() % 8) FutexWake(worker->asleep, 1);")
engine_mutant(double_completion completion.cc "Workers/CompletionTest.S*"
  "if (state_->called.exchange(1, std::memory_order_acq_rel) == 0) {"
  "if (state_->called.exchange(0, std::memory_order_acq_rel) == 0) {")
engine_mutant(dropped_completion_failure completion.cc "Workers/CompletionTest.Dropping*"
  "!= 1) return;"
  "!= 99) return;")
engine_mutant(dropped_drain_note drain.cc "Workers/WaitingTest.*/1"
  "void EngineCore::NoteDrain() {"
  "void EngineCore::NoteDrain() { return;")
engine_mutant(dropped_driver_wake wait.cc "Workers/CompletionTest.CalledOnAForeign*/0"
  "FutexWake(*waiter.word, kEveryone);"
  "")
engine_mutant(lost_unseen_error execute.cc "Workers/UnseenErrorsTest.*"
  "errors_.Add(error);"
  "(void)0;")
engine_mutant(last_listed_error execute.cc "Workers/ErrorsTest.OfSeveral*"
  "a.listed() >= listed"
  "(first && a.listed() < listed)")
engine_mutant(update_clears_poison execute.cc "Workers/ErrorsTest.RunAlways*"
  "} else if (a.mode() == Mode::kWrite) {"
  "} else {")
engine_mutant(wait_for_own_var wait.cc "Workers/NestedWaitTest.WaitForAVarOfItsOwn*"
  "if (FindAccess(f->op, core))"
  "if (false)")
engine_mutant(unbounded_pending back_pressure.cc "Workers/BackPressureTest.PendingOps*/0"
  "  WaitForRoom(slot);
  return true;"
  "  return true;")
engine_mutant(fork_without_poison fork.cc "Workers/ForkTest.VarsWithPending*"
  "      SetPoison(var, error);"
  "")
