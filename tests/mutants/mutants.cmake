# name, the test that must notice, what is done to the line that is marked with the name.

# --- sleep and wake, waits, drains
engine_mutant(dropped_wake "Workers/WaitingTest.*/1" DROP)
engine_mutant(dropped_drain_note "Workers/WaitingTest.*/1" DROP)
engine_mutant(drain_note_kept_back "WaitAllTest.*" DROP)
engine_mutant(driver_keeps_its_note "WaitAllTest.IsToldByADriverThatLeaves" DROP)
engine_mutant(drain_waits_for_nothing "Workers/DeferTest.Drain*" FALSE)
engine_mutant(drain_shows_errors "Workers/DeferTest.Drain*" FALSE)
engine_mutant(dropped_driver_wake "Workers/CompletionTest.CalledOnAForeign*/0" DROP)
engine_mutant(driver_leaves_in_silence "DriverTest.AWait*" DROP)
engine_mutant(refused_driver_keeps_its_wake "DriverTest.AWaitInsideAnOpThatGetsNoDriver*" DROP)
engine_mutant(body_under_the_scopes_of_who_waits "Workers/DrivingTest.ABodyPushesUnderNo*/0" DROP)
engine_mutant(wait_for_own_var "Workers/NestedWaitTest.WaitForAVarOfItsOwn*" FALSE)
engine_mutant(push_drives_while_stopped "Workers/StoppedRunsTest.*/0" INSTEAD "if (core_.DriveOne()) continue;")
engine_mutant(naive_runs_while_stopped "Workers/StoppedRunsTest.A*/0" INSTEAD "if (at_push && !t_in_piece) {")
engine_mutant(awaits_without_a_stand_in "Workers/InlineTest.WhatAwaits*" DROP)
engine_mutant(drain_needs_a_stand_in "Workers/ShutdownInsideTest.*/0" INSTEAD "throw;")
engine_mutant(op_starts_behind_its_engine "ShutdownInsideTest.*StartsBehind*" FALSE)
engine_mutant(node_starts_behind_its_engine "ShutdownInsideTest.NoNode*" FALSE)
engine_mutant(closure_destroyed_outside "SkippedClosures.May*" DROP)
engine_mutant(device_closure_destroyed_outside "SkippedClosures.OfOpsOnA*" INSTEAD "if (op->extra.closure->destroy) op->extra.closure->destroy(op->closure());")
engine_mutant(retirement_sleeps "SkippedClosures.OfOpsThatHaveRetiredMayW*" INSTEAD "if (false) {")
engine_mutant(unbounded_pending "Workers/BackPressureTest.PendingOps*/0" DROP)

# --- completions
engine_mutant(double_completion "Workers/CompletionTest.S*" TRUE)
engine_mutant(dropped_completion_failure "Workers/CompletionTest.Dropping*" TRUE)
engine_mutant(deferred_ends_early "Workers/DeferTest.OpEndsWith*" FALSE)
engine_mutant(deferred_twice "Workers/DeferTest.SecondCall*" FALSE)
engine_mutant(late_failure_of_a_deferred_body "Workers/DeferTest.BodyThatThrowsBehind*" INSTEAD "  } else if (false) {")
engine_mutant(failed_beside_its_body "Workers/ShutdownTest.TimeoutStartsNothing*" INSTEAD
  "const bool returned = true;")
engine_mutant(completion_of_the_parent "*ForkInertTest.*" DROP)

# --- errors, forks, reports
engine_mutant(lost_unseen_error "Workers/UnseenErrorsTest.*" DROP)
engine_mutant(last_listed_error "Workers/ErrorsTest.OfSeveral*" INSTEAD
  "if (a.mode() == AccessMode::kWrite || (first && a.listed() < listed)) continue;")
engine_mutant(update_clears_poison "Workers/ErrorsTest.RunAlways*" TRUE)
engine_mutant(error_of_a_dropped_run "Workers/PlanErrorsTest.AnOpBehind*" INSTEAD
  "core_.SetPoison(run.done.core(), nullptr);")
engine_mutant(fork_without_poison "Workers/ForkTest.VarsWithPending*" DROP)
engine_mutant(large_blocks_unlisted "Workers/WatchdogTest.NamesOpsOfManyVars*" FALSE)

# --- ops that are held together
engine_mutant(needed_chain_not_released "Workers/OpChainTest.AWaitOfAnyThread*" FALSE)
engine_mutant(several_holders_not_released "Workers/OpChainTest.HeldReadersOfSeveral*" DROP)
engine_mutant(chain_not_left_by_a_wait "Workers/OpChainTest.AMemberMayWaitForALaterOne/1" TRUE)
engine_mutant(started_member_stays_in_its_chain "OpChainDispatches.AMemberThatWasLetGo*" INSTEAD
  "if (op->extra.more_behind) chain.first = op->extra.next; else pass.slot->var_cache.Return(kChainClass, &chain);")
engine_mutant(op_for_the_host_held "Workers/OpChainTest.OpsForTheHostPassBy*" FALSE)
engine_mutant(chain_waits_for_any_member "Workers/BlockedMembersTest.MayWaitForWhat*" DROP)
engine_mutant(chain_never_waits "BlockedMembersDispatches.*" TRUE)
engine_mutant(row_taken_for_granted "Workers/BlockedMembersTest.AreFoundAgain*" DROP)
engine_mutant(blocked_member_kept "Workers/BlockedMembersTest.MayWaitForWhat*" FALSE)

# --- bulk
engine_mutant(bulk_takes_ops_for_the_host "Redirected.OneThatYields*" TRUE)
engine_mutant(bulk_released_by_an_op_for_the_host "Workers/BulkHostTest.*StartAtOnce*" INSTEAD
  "return Release(), state_->ops.PushPast(desc, fn, site, may_wait);")
engine_mutant(bulk_keeps_other_placements "Workers/BulkTest.AnotherPlacement*" DROP)
engine_mutant(bulk_without_limit "BulkCounters.AThousand*" DROP)
engine_mutant(bulk_never_opened "BulkClock.*" DROP)
engine_mutant(idle_bulk_never_released "Workers/BulkTest.AMillisecond*" DROP)
engine_mutant(idle_bulk_released_early "Workers/BulkTest.AMillisecond*" DROP)

# --- devices
engine_mutant(lost_device_not_drained "DeviceFaults.ADeviceThatIsLostAndWorksOn*" INSTEAD
  "const Loss loss = Loss::kGone;")
engine_mutant(lost_replaces_error "DeviceFaults.ALostDeviceKeeps*" INSTEAD
  "const bool has_one = false;")
engine_mutant(run_nobody_waits_for "DevicePlans.ARunThatNobodyWaitsFor*" INSTEAD
  "const auto* const asked = false ? asked_for(op) : nullptr;")
engine_mutant(event_used_again_too_early "DeviceBulk.EventsAreMadeOnce*" INSTEAD
  "while (!on.records.empty() && on.records.front().seq <= retired + 1) {")
engine_mutant(awaits_one_lane_only "Lanes.AHostWriterWaitsForTheReadersOf*" INSTEAD
  "if (AwaitRetired(lane(open.lane), open.seq, op)) return false; else break;")
engine_mutant(waiters_that_nobody_tells_of "DevicePlans.WhoeverComesToWait*" DROP)
engine_mutant(lane_made_of_a_lost_device "DeviceFaults.AnOpWhoseLaneIsMade*" DROP)
engine_mutant(device_thread_after_the_end "Workers/HandlesTest.OfVarsAfterTheShutdown/1" TRUE)

# --- teams of runs
engine_mutant(waiter_takes_no_part "TeamTest.WhoeverWaits*" DROP)
engine_mutant(node_under_the_scopes_of_who_waits "TeamTest.NodesOnTheWaiting*" DROP)
engine_mutant(team_without_limit "TeamTest.NeverMore*" INSTEAD "const bool room = true;")
engine_mutant(ready_node_kept_to_oneself "TeamTest.TwoReady*" DROP)
engine_mutant(sleeper_stays_away "TeamTest.EachThread*" DROP)
engine_mutant(loop_without_its_helpers "WideTest.*" DROP)
engine_mutant(loop_that_invites_nobody "WideTest.ThreadsOfTheTeam*" INSTEAD "OpRecord* const share = nullptr;")
engine_mutant(piece_that_failed_in_silence "WideTest.AnException*" DROP)

# --- gates of runs
engine_mutant(run_without_gates "Workers/GatesTest.ANodeWhoseVarIsFree*/2" TRUE)
engine_mutant(node_before_its_gates "Workers/GatesTest.ATaskStops*/2" FALSE)
engine_mutant(share_without_a_count "Workers/GatedEndsTest.AThreadWhoseOnlyTask*/4" INSTEAD
  "run.remaining.fetch_sub(counts), std::this_thread::sleep_for(std::chrono::milliseconds(1));")
engine_mutant(stopped_task_forgotten "Workers/GatesTest.ATaskStops*/2" TRUE)
engine_mutant(gates_that_nobody_awaits "Workers/GatesTest.ALateInputHolds*/2" INSTEAD "const uint32_t gates = 0;")
engine_mutant(error_of_a_late_var "Workers/GatedEndsTest.AnErrorSkips*/2" FALSE)
engine_mutant(version_of_a_late_var "Workers/GatesTest.Versions*/2" INSTEAD "return nullptr;")

# --- what the oracle must notice
oracle_mutant(error_of_a_dropped_run plans,run_vars,fail "noise=4 fail_in=8 pushers=4" INSTEAD
  "core_.SetPoison(run.done.core(), nullptr);")
set(oracle_forks "fork,fork_handles,fork_devices,fork_collectives,fork_stages,devices,collectives,stages,plans,noise")
oracle_mutant(devices_found_in_a_child ${oracle_forks} "ending=0 features=fork,fork_devices,devices,noise" INSTEAD
  "devices_ = MakeDevices(*this, options_, false);")
oracle_mutant(device_work_lost_by_a_fork ${oracle_forks} "ending=0 features=fork,fork_devices,devices,noise" INSTEAD "const bool unretired = false;")
oracle_mutant(stage_ends_in_a_child ${oracle_forks} "ending=0 features=fork,fork_stages,stages,noise" FALSE)
oracle_mutant(shutdown_lock_of_the_parent "fork,fork_shutdown,shutdown_beside,noise" "ending=4" DROP)
oracle_mutant(points_taken_behind_the_body all "ending=0 features=devices,device_no_memory,noise" DROP)
oracle_mutant(give_back_needs_memory all "ending=0 features=devices,device_no_memory,noise" INSTEAD
  "free_.find(block->bytes)->second.Append(block), ::operator delete(::operator new(1));")
oracle_mutant(stream_without_a_thread all "ending=0 features=devices,device_no_threads,no_threads,noise" DROP)
oracle_mutant(collectives_fail_in_silence all "ending=0 features=collectives,collective_faults,noise" DROP)
oracle_mutant(failed_work_overtaken all "ending=0 features=collectives,collective_faults,noise" INSTEAD
  "const bool over = true;")
