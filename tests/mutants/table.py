"""The planted faults. Each breaks a mechanism of docs/patterns.md or a guarantee of the protocol."""

# ruff: noqa: E501  # texts of the source stand in one line each

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: `instead` replaces `text`, which occurs once in `file`. This breaks `what`, and each of `tests` fails.

    `file` is relative to the repository. Tests are `path::name` relative to tests/.
    """

    what: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]


def _core(what: str, file: str, text: str, instead: str, *tests: str) -> Mutant:
    named = tuple(f"unit/core/{test}" for test in tests)
    return Mutant(what, f"runtime/pointsman/core/{file}", text, instead, named)


def _runtime(what: str, file: str, text: str, instead: str, *tests: str) -> Mutant:
    return Mutant(what, f"runtime/pointsman/{file}", text, instead, tests)


MUTANTS = (
    # Mechanisms
    _runtime(
        "M1", "engine/process/handoff_codec.py", "    if said != (address.agent, address.team, address.workflow, address.task, address.attempt):",
        "    if False:", "unit/engine/worker/test_handoffs.py::test_bad_handoffs_are_dead_lettered_and_good_ones_continue",
    ),
    _runtime(
        "M1", "engine/log/requests.py", "    if said != addressed:", "    if False:",
        "unit/engine/log/test_requests.py::test_a_result_that_speaks_of_another_attempt_than_its_subject_is_refused",
    ),
    _core(
        "a result belongs to its dispatch", "results.py",
        "    if not has_token(state, received):\n        return None", "    if False:\n        return None",
        "test_decide.py::test_result_with_another_token_changes_nothing",
    ),
    _runtime(
        "a timer comes from its own schedule", "engine/log/requests.py", "            if stored.scheduled_by != planned:",
        "            if False:", "unit/engine/log/test_requests.py::test_timer_of_another_schedule_is_refused",
    ),
    _core(
        "a message counts once", "user_messages.py",
        "    if received.event_id in state.ignored_events:\n        return  # a redelivery", "    if False:\n        return",
        "test_user_messages.py::test_message_is_recorded_once_with_its_sender",
    ),
    _core(
        "a message that no task has read is not lost", "user_messages.py",
        "state.messages[state.messages_read :]", "state.messages[:0]",
        "test_user_messages.py::test_unread_messages_are_counted_and_become_the_next_turn",
    ),
    _runtime(
        "a continued attempt reads the same messages", "authoring/user_messages.py",
        "        step = await self._record.recorded_step(name)", "        step = None",
        "unit/authoring/test_user_messages.py::test_continued_attempt_reads_the_same_messages",
    ),
    _core(
        "M2", "planning/acceptance.py", "PlanAccepted(at=decision.now, revision=number, plan=plan)",
        "PlanAccepted(at=decision.now, revision=1, plan=plan)",
        "../test_mechanisms.py::test_plan_and_revisions_are_readable_before_their_tasks_run",
    ),
    _core(
        "M3", "tasks/dispatch.py", "        if dependency.status not in SETTLED:", "        if False:",
        "test_decide.py::test_task_starts_once_its_dependencies_have_succeeded",
    ),
    _core(
        "M3", "outbox.py", "tuple(task_report(state.tasks[name]) for name in task.depends_on if name in state.tasks)",
        "tuple(task_report(done) for done in state.plan_tasks())",
        "test_decide.py::test_task_gets_the_results_of_its_dependencies_only",
    ),
    _core(
        "M4", "tasks/dispatch.py", "    decision.ready.extend(decision.state.dependants.get(task.id, ()))", "    pass",
        "test_decide.py::test_a_failure_skips_the_whole_chain_behind_it_at_once",
    ),
    _core(
        "M4", "completion/synthesis.py", "        gaps=find_gaps(state),", "        gaps=(),",
        "test_decide.py::test_synthesizer_gets_the_gaps",
    ),
    _core(
        "M5", "planning/planner.py", "    return check_plan(plan, names, limits, started, skills, allow_expressions=expressions)", "    return ()",
        "planning/test_planner.py::test_a_refused_plan_goes_back_with_every_reason",
    ),
    _core(
        "M5", "planning/validation.py", "    if task.agent in agents:", "    if True:",
        "planning/test_validation.py::test_each_fault_is_named",
    ),
    Mutant(
        "M5", "schemas/pointsman_schemas/plan_checks.py",
        "    if stuck := dict.fromkeys(task_id for task_id in needs if open_needs[task_id]):", "    if stuck := {}:",
        ("unit/core/planning/test_validation.py::test_each_fault_is_named",),
    ),
    _core(
        "M5", "planning/acceptance.py", "    if state.rejections <= state.limits.plan_repairs:", "    if state.rejections < 99:",
        "planning/test_planner.py::test_plans_are_sent_back_a_bounded_number_of_times",
    ),
    Mutant(
        "M6", "agents/pointsman_agents/synthesizer.py", 'Path(__file__).with_suffix(".md")',
        'Path(__file__).with_name("planner.md")',
        ("unit/test_mechanisms.py::test_planner_and_synthesizer_have_a_prompt_a_model_and_a_context_each",),
    ),
    _core(
        "M7", "results.py", "            if hint := received.result.replan_hint:", '            if hint := "":',
        "planning/test_planner.py::test_a_hint_changes_the_plan_while_other_tasks_run_on",
    ),
    _core(
        "M7", "decide.py", "        if failed and not state.reached_limit and request_replan(", "        if False and request_replan(",
        "planning/test_planner.py::test_a_failure_asks_for_another_plan_once_the_rest_is_done",
    ),
    _core(
        "M7", "planning/acceptance.py", "is Phase.RUNNING and remaining_replans(state) and remaining_tasks(state)):",
        "is Phase.RUNNING):",
        "planning/test_planner.py::test_replans_are_bounded",
    ),
    _core(
        "M7", "planning/planner.py", "        if not problems and _is_repetition(plan, state):", "        if False:",
        "planning/test_planner.py::test_the_same_plan_again_is_refused",
    ),
    _core(
        "M8", "planning/role_tasks.py", "tuple(dict.fromkeys(task.agent for task in work if task.attempt)),", "(),",
        "strategies/test_adaptive.py::test_planner_gets_the_task_the_agents_used_the_results_and_the_rest",
    ),
    _core(
        "M8", "planning/role_tasks.py", "            input_schema=card.input_schema,\n", "",
        "planning/test_planner.py::test_planner_and_classifier_get_descriptions_and_schemas_of_agents",
    ),
    Mutant(
        "M9", "schemas/pointsman_schemas/retry.py", "self.backoff * self.factor ** min(attempt - 1, _MAX_GROWTHS)",
        "self.backoff",
        ("unit/core/attempts/test_retry.py::test_transient_failures_back_off_from_a_second_with_doubling_and_jitter",),
    ),
    _core(
        "M9", "attempts/retry.py", "(1 - policy.jitter + 2 * policy.jitter * draw)", "(1 + 0 * draw)",
        "attempts/test_retry.py::test_jitter_spreads_retries_and_is_reproducible",
    ),
    _core(
        "M9", "outbox.py", "        schedule=retry_schedule(state, task, subjects) if waits else None,", "",
        "attempts/test_retry.py::test_the_next_attempt_waits_in_a_schedule_of_the_broker",
    ),
    _core(
        "M10", "attempts/refinement.py", "        and task.attempt >= _MIN_FAILED_ATTEMPTS", "        and task.attempt > 99",
        "attempts/test_refinement.py::test_after_the_second_failure_the_refiner_is_asked_and_knows_the_error",
        "../agents/test_helping_roles.py::test_a_task_that_failed_twice_succeeds_in_better_words",
    ),
    _core(
        "M11", "attempts/retry.py", "    if policy.is_retried(error) and task.attempt < task.max_attempts:",
        "    if policy.is_retried(error):",
        "attempts/test_retry.py::test_attempts_are_capped",
    ),
    _runtime(
        "M11", "engine/supervisor/circuit_breaker.py", "            if len(failing) == self._failures:", "            if False:",
        "unit/engine/supervisor/test_circuit_breaker.py::"
        "test_failing_agent_gets_no_work_then_a_probe_then_work",
    ),
    _core(
        "M11", "tasks/agent_selection.py", "    return decision.now >= circuit.until and agent not in decision.probes",
        "    return decision.now >= circuit.until",
        "model/test_agent_health.py::test_due_probe_takes_one_task_and_the_others_wait",
    ),
    _runtime(
        "M11", "engine/supervisor/committer.py",
        "            if draft.probes and not await self._circuits.claim_probes(draft.probes, draft.now):",
        "            if False:", "unit/engine/supervisor/test_circuit_breaker.py::test_three_supervisors_send_one_probe_between_them",
    ),
    _core(
        "a fixed plan refuses inputs of unknown tasks", "strategies/fixed.py",
        "    if unknown := [task_id for task_id in inputs if task_id not in ids]:", "    if unknown := []:",
        "strategies/test_fixed.py::test_inputs_that_do_not_fit_the_plan_refuse_the_request",
    ),
    _core(
        "a task of a fixed plan receives its input of the request", "tasks/handoff_input.py",
        "    if isinstance(inputs, dict) and inputs.get(task.id) is not None:", "    if False:",
        "strategies/test_fixed.py::test_a_request_names_the_inputs_of_its_tasks",
    ),
    _core(
        "a planner does not exceed the retry policy of its team", "planning/acceptance.py",
        "        plan = _bound_retries(plan, state.retry)", "        pass",
        "planning/test_planner.py::test_a_plan_cannot_exceed_the_retry_policy_of_its_team",
    ),
    _core(
        "M12", "attempts/retry.py", "        return Retry(task.fallback, timedelta(), reason)", "        return None",
        "attempts/test_retry.py::test_the_fallback_gets_one_attempt_when_the_agent_is_exhausted",
        "attempts/test_retry.py::test_the_fallback_gets_the_task_of_an_agent_that_is_gone",
    ),
    _core(
        "M12", "attempts/retry.py", "    if task.fallback and falls_back and decision.card(task.fallback):",
        "    if task.fallback and falls_back:",
        "attempts/test_retry.py::test_a_fallback_that_is_not_alive_gets_nothing",
    ),
    _core(
        "M13", "completion/synthesis.py", "        return end_workflow(decision, Phase.FAILED, failure_answer(state), reason)",
        "        return end_workflow(decision, Phase.FAILED, None, reason)",
        "test_decide.py::test_total_failure_is_explained_to_the_caller_and_the_operator",
    ),
    _core(
        "M13", "attempts/failures.py", "Phase.PARTIAL, raw_results(decision), reason)", "Phase.PARTIAL, None, reason)",
        "test_decide.py::test_a_synthesizer_that_fails_leaves_the_bare_results_as_a_partial_answer",
    ),
    _core(
        "M14", "limits.py", "        return _stop_work(decision, \"deadline\", reached)", "        return None",
        "test_limits.py::test_deadline_while_running_starts_the_synthesis",
    ),
    _core(
        "M14", "limits.py", "        if task.active and task.deadline and decision.now >= task.deadline + RESULT_GRACE",
        "        if False",
        "attempts/test_retry.py::test_silent_agent_times_out_after_the_grace_and_is_retried",
    ),
    _runtime(
        "M14", "engine/worker/attempt.py", "        limit = min(left, self._agent.card.timeout)", "        limit = left",
        "unit/engine/worker/test_agent_slots.py::test_attempt_ends_at_the_task_deadline_or_agent_timeout",
    ),
    _runtime(
        "M14", "engine/worker/attempt.py", "        limit = min(left, self._agent.card.timeout)",
        "        limit = self._agent.card.timeout",
        "unit/engine/worker/test_agent_slots.py::test_attempt_ends_at_the_task_deadline_or_agent_timeout",
    ),
    _runtime(
        "M14", "engine/worker/attempt.py", "                self._state.cancel()", "                pass",
        "unit/engine/worker/test_agent_slots.py::test_the_hard_deadline_ends_an_attempt_and_frees_its_slot",
    ),
    _runtime(
        "M14", "engine/worker/attempt.py", "            execution.cancel()\n            await asyncio.wait(",
        "            await asyncio.wait(",
        "unit/engine/worker/test_agent_slots.py::test_a_handler_that_could_not_be_stopped_is_reported_as_running",
    ),
    _core(
        "M15", "budget/token_bucket.py", "    if wait > 0:", "    if False:",
        "budget/test_token_bucket.py::test_no_minute_exceeds_the_limit_by_more_than_a_sixth",
    ),
    _core(
        "M15", "budget/token_bucket.py", '        update["tokens"] = there.tokens + tokens', "        pass",
        "budget/test_token_bucket.py::test_tokens_are_guessed_before_and_set_right_after",
    ),
    _core(
        "M15", "budget/token_bucket.py", "    if there.closed_until is not None and there.closed_until > now:", "    if False:",
        "../engine/worker/test_rate_limiter.py::test_a_provider_s_pause_holds_back_every_worker",
    ),
    _runtime(
        "M15", "engine/worker/engine.py", "                    max_in_flight=slots.agent.card.max_in_flight,\n", "",
        "unit/engine/worker/test_agent_slots.py::test_the_runs_of_all_replicas_never_exceed_the_limit_in_flight",
    ),
    _core(
        "M16", "model/agent_health.py", "(self.queued + more) / slots", "more / slots",
        "tasks/test_skills.py::test_the_idle_agent_gets_the_work",
    ),
    _core(
        "M16", "model/agent_health.py", "(usual if self.seconds is None else self.seconds)", "usual",
        "tasks/test_skills.py::test_the_slower_of_two_gets_less",
    ),
    _core("M16", "model/agent_health.py", "/ slots", "/ 1", "tasks/test_skills.py::test_an_agent_with_more_slots_gets_more_tasks"),
    _core(
        "M17", "completion/synthesis.py", "    if not (found := find_result_conflicts(state)):", "    if not (found := ()):",
        "completion/test_conflicts.py::test_a_contradiction_is_decided_before_the_answer_is_written",
        "../agents/test_helping_roles.py::test_a_contradiction_is_decided_and_the_outcome_has_the_reason",
    ),
    _core(
        "M17", "completion/outcome.py", "            \"conflicts\": conflict_decisions(state),", "",
        "../agents/test_helping_roles.py::test_a_contradiction_is_decided_and_the_outcome_has_the_reason",
    ),
    _core(
        "M17", "results.py", "    if (judge := check.judge) is not None:",
        "    if (judge := None) is not None:",
        "attempts/test_review.py::test_nothing_continues_before_the_judge_has_let_it_pass",
    ),
    _runtime(
        "M18", "authoring/tool_turns.py", '        if call.name not in self.tools:\n            known = ", ".join(self.tools)',
        "        others = {\n"
        '            each.name: each for each in __import__("gc").get_objects() if type(each) is Tool\n'
        "        }\n"
        "        self.tools = {**others, **self.tools}\n"
        '        if call.name not in self.tools:\n            known = ", ".join(self.tools)',
        "unit/authoring/test_tool_turns.py::test_tool_of_another_agent_is_out_of_reach",
    ),
    _runtime(
        "M19", "authoring/llm_agent.py", "range(1, self._turns + 1)", "range(1, self._turns + 2)",
        "unit/authoring/test_tool_turns.py::test_the_loop_ends_after_its_turns_with_a_reason",
    ),
    _runtime(
        "M19", "authoring/tools.py", "        except BaseException as error:  # even a",
        "        except ZeroDivisionError as error:  # even a",
        "unit/authoring/test_tool_turns.py::test_model_error_is_reported_to_the_model",
        "unit/authoring/test_tools.py::test_exceptions_and_values_that_are_no_json_are_results",
    ),
    _core(
        "M20", "views/trace.py", "            children=tuple(calls),", "            children=(),",
        "views/test_trace.py::test_tools_and_model_calls_hang_below_their_attempt_and_below_each_other",
    ),
    _runtime(
        "M20", "engine/supervisor/spans.py", '            case "task_succeeded" | "task_failed" | "task_abandoned":\n'
        "                task = state.tasks[entry.task_id]\n                if task.started_at",
        '            case "task_failed" | "task_abandoned":\n'
        "                task = state.tasks[entry.task_id]\n                if task.started_at",
        "unit/telemetry/test_conformance.py::test_each_attempt_has_a_span_and_each_retry_an_event",
    ),
    _runtime(
        "M20", "engine/supervisor/spans.py", "        context=trace_context(trace, task.span_id),",
        '        context=trace_context(trace, "0123456789abcdef"),',
        "unit/telemetry/test_conformance.py::test_every_span_of_a_run_meets_the_conventions",
    ),
    _runtime(
        "M20", "engine/supervisor/spans.py", "                _export_workflow(state, entry.at, _workflow_events(history))",
        "                pass",
        "unit/telemetry/test_conformance.py::test_every_span_of_a_run_meets_the_conventions",
    ),
    _runtime(
        "M20", "engine/supervisor/spans.py",
        "                yield SpanEvent(semconv.RETRY_SCHEDULED, entry.at, retry)", "                pass",
        "unit/telemetry/test_conformance.py::test_each_attempt_has_a_span_and_each_retry_an_event",
    ),
    _runtime(
        "M20", "engine/supervisor/spans.py", "if any(cause is not None and cause in event_ids for cause in causes):",
        "if False:",
        "unit/telemetry/test_conformance.py::"
        "test_supervisor_crash_after_a_commit_loses_and_doubles_no_span",
    ),
    _core(
        "M21", "completion/outcome.py", "sum(task.work_seconds for task in state.tasks.values()),", "0.0,",
        "test_decide.py::test_outcome_has_the_elapsed_and_the_sequential_time",
    ),
    _core(
        "M22", "evolve.py", "        state = copy_with(state, usage=state.usage + entry.result.usage)\n", "",
        "test_decide.py::test_failed_attempt_counts_in_time_and_cost",
    ),
    _core(
        "M22", "completion/synthesis.py", "    if not (found := find_result_conflicts(state)):",
        "    found = find_result_conflicts(state)\n    if False:",
        "../test_mechanisms.py::test_successful_tasks_cost_one_model_call_each_and_two_more",
    ),
    _runtime(
        "M23", "evaluation/runner.py",
        "    cells += [(name, other) for name in missing for other in (beside or {NO_AGENT})]\n", "",
        "unit/evaluation/test_runner.py::test_routing_accuracy_and_confusion_are_measured",
    ),
    _runtime(
        "M23", "evaluation/runner.py", "            if there.get(name) != value", "            if False",
        "unit/evaluation/test_runner.py::test_an_agent_s_fields_are_compared_and_its_result_can_be_checked",
    ),
    _runtime(
        "M23", "evaluation/runner.py", "asyncio.Semaphore(parallel)", "asyncio.Semaphore(1)",
        "unit/evaluation/test_runner.py::test_concurrent_cases_are_bounded",
    ),
    _runtime(
        "M24", "authoring/agent_factory.py", "            tools=[self._tools[name] for name in wanted],",
        "            tools=list(self._tools.values()),",
        "unit/authoring/test_agent_factory.py::test_unrequested_tool_of_the_list_is_out_of_reach",
    ),
    _runtime(
        "M24", "authoring/agent_factory.py", "            instructions=need.instructions,", '            instructions="Help.",',
        "unit/authoring/test_agent_factory.py::test_made_agent_has_the_instructions_input_and_tools_of_its_need",
    ),
    _runtime(
        "M24", "authoring/agent_factory.py", "            model=self._base_instructions.models,\n            **self._limits,",
        "            model=self._base_instructions.models,",
        "unit/authoring/test_agent_factory.py::test_made_agent_has_the_bounds_of_its_factory",
    ),
    _core(
        "M25", "schedules/runs.py", "    if any(each.due == newest and not each.by for each in schedule.runs):",
        "    if False:",
        "schedules/test_runs.py::test_clock_that_is_set_back_fires_no_time_twice",
    ),
    _core(
        "M25", "schedules/runs.py", "    set_back = schedule.through - now > _CLOCK_SKEW",
        "    set_back = schedule.through > now",
        "schedules/test_runs.py::test_clock_that_steps_back_by_a_second_decides_nothing_again",
    ),
    _core(
        "M25", "schedules/runs.py", "        return (TimesPassed(at=now, through=now),) if set_back else ()",
        "        return ()",
        "schedules/test_runs.py::test_fires_after_a_wrong_jump_forward_are_made_up_when_the_clock_is_corrected",
    ),
    _core(
        "M25", "schedules/runs.py", '    if now - newest > timedelta(seconds=spec.grace) and spec.missed == "skip":',
        "    if False:",
        "schedules/test_runs.py::test_missed_fires_follow_the_policy",
    ),
    _core(
        "M25", "schedules/runs.py", "            return None if open_runs(schedule) else False",
        "            return False",
        "schedules/test_runs.py::test_fire_during_a_run_follows_the_overlap_policy",
    ),
    _core(
        "M25", "schedules/runs.py", "            return True if waiting < MAX_QUEUED_RUNS else None",
        "            return True",
        "schedules/test_runs.py::test_queued_runs_start_in_their_order_and_are_bounded",
    ),
    _core(
        "M25", "schedules/runs.py", '    if first is None or first.status != "queued":',
        "    if True:",
        "schedules/test_runs.py::test_queued_runs_start_in_their_order_and_are_bounded",
    ),
    _core(
        "M25", "schedules/runs.py", " and fired != schedule.timer",
        "",
        "schedules/test_runs.py::test_timer_that_fires_early_is_armed_again",
    ),
    _core(
        "M25", "schedules/runs.py", "    wanted = min([now + MAX_WAKE, *fires])",
        "    wanted = fires[0]",
        "schedules/test_runs.py::test_timer_is_armed_a_day_ahead_at_most",
    ),
    _core(
        "M25", "schedules/runs.py", "    if asked.actor != schedule.caller and not asked.for_others:",
        "    if False:",
        "schedules/test_runs.py::test_schedule_of_another_caller_needs_the_right_to_change_it",
    ),
    _core(
        "M25", "schedules/runs.py", "    if schedule is not None and any(each.id == asked.id for each in schedule.changes):",
        "    if False:",
        "schedules/test_runs.py::test_run_by_hand_is_a_run_of_its_own",
    ),
    _core(
        "M25", "schedules/state.py", '            through = max(entry.at, schedule.through) if schedule.status == "active" else entry.at',
        "            through = schedule.through",
        "schedules/test_runs.py::test_pause_drops_its_times_and_resume_continues",
    ),
    _core(
        "M25", "schedules/state.py", '            left = tuple(each for each in schedule.runs if each.status != "queued")',
        "            left = schedule.runs",
        "schedules/test_runs.py::test_deleted_schedule_fires_no_more_and_drops_its_queue",
    ),
    _core(
        "M25", "schedules/state.py", "        timer=before.timer if before else 0,",
        "        timer=0,",
        "schedules/test_runs.py::test_name_is_free_after_the_deletion",
    ),
    _core(
        "M25", "schedules/state.py", "    for each in ended[: max(0, len(ended) - MAX_RUNS)]:",
        "    for each in ended[:0]:",
        "schedules/test_runs.py::test_record_keeps_the_newest_runs",
    ),
    _core(
        "M25", "schedules/times.py", "        if fire > last:",
        "        if True:",
        "schedules/test_times.py::test_second_half_of_the_repeated_hour_fires_no_more",
    ),
    _runtime(
        "M25", "engine/supervisor/scheduler.py", "        if stored.scheduled_by != planned:",
        "        if False:",
        "unit/engine/supervisor/test_schedules.py::test_timer_that_no_broker_published_is_a_dead_letter",
    ),
    _runtime(
        "M25", "engine/supervisor/scheduler.py", "or (complete and not await self._has_begun(each))]",
        "]",
        "unit/engine/supervisor/test_schedules.py::test_run_whose_request_was_never_sent_is_sent_by_the_next_supervisor",
    ),
    _core(
        "M25", "schedules/runs.py", "    _check_files(change.spec, asked)", "    pass",
        "schedules/test_runs.py::test_files_belong_to_the_schedule_and_fit_the_team",
    ),
    _core(
        "M25", "schedules/state.py", "    return any(run.started_at is not None and run.started_at < schedule.created_at for run in open_runs(schedule))",
        "    return False",
        "schedules/test_runs.py::test_files_are_needed_by_the_schedule_and_by_runs_of_its_predecessor",
    ),
    _runtime(
        "M25", "engine/supervisor/object_retention.py", "            return schedule is not None and needs_file(schedule, digest)",
        "            return False", "unit/engine/supervisor/test_schedules.py::test_files_stay_as_long_as_their_schedule_and_are_removed_after_it",
    ),
    _runtime(
        "M25", "engine/supervisor/object_retention.py", "            await self._remove_orphans(until)", "            pass", "unit/engine/supervisor/test_schedules.py::test_files_stay_as_long_as_their_schedule_and_are_removed_after_it",
    ),
    # The protocol
    _runtime(
        "commit before acknowledgement", "engine/supervisor/engine.py",
        "        head, entries, owed, raced = await self._committer.commit(workflow, head, inbound)",
        "        for arrival in inbound:\n            await arrival.delivery.ack()\n        head, entries, "
        "owed, raced = await self._committer.commit(workflow, head, inbound)",
        "unit/engine/test_order.py::test_commit_precedes_publish_and_publish_precedes_ack",
    ),
    _runtime(
        "commits by compare-and-set", "engine/log/workflow_log.py",
        "            storing = self._bus.publish(subject, dump(commit), headers, expect=head.sequence)",
        "            storing = self._bus.publish(subject, dump(commit), headers)",
        "unit/engine/test_foundations.py::"
        "test_second_commit_from_one_head_is_refused_and_stores_nothing",
    ),
    _runtime(
        "idempotent emission", "engine/supervisor/outbox_publisher.py",
        "        return self._bus.publish(message.subject, body, headers, expect=0)",
        "        return self._bus.publish(message.subject, body, headers)",
        "unit/engine/test_foundations.py::test_resent_outbox_is_stored_once",
    ),
    _runtime(
        "recovery republishes all pending messages", "engine/supervisor/engine.py",
        "            await self._outbox.republish_all(head.state, entries)\n            others = False",
        "            await self._outbox.publish_new(head.state, entries)\n            others = False",
        "unit/engine/test_order.py::test_crash_at_any_step_leaves_nothing_undone",
    ),
    _runtime(
        "a redelivered input of an ended workflow is settled", "engine/supervisor/engine.py",
        "in self._ended and not again and all(is_late", "in self._ended and all(is_late",
        "unit/engine/test_order.py::"
        "test_workflow_span_is_exported_after_the_death_of_its_supervisor",
    ),
    _runtime(
        "agents before a gap in a log are not used after it", "engine/log/workflow_log.py",
        "                agents = _live_agents(LogHead(), commit)", "                agents = _live_agents(head, commit)",
        "unit/engine/test_foundations.py::"
        "test_card_from_before_a_log_gap_does_not_count_after_it",
    ),
    _runtime(
        "result before acknowledgement", "engine/worker/handoff_processor.py", "        fault_point(\"worker.ran\")",
        "        await job.delivery.ack()\n        fault_point(\"worker.ran\")",
        "unit/engine/worker/test_results.py::test_nothing_is_acknowledged_before_the_result_is_stored",
    ),
    _runtime(
        "one result for each attempt", "engine/process/retrying.py",
        "            await bus.publish(subject, body, headers, expect=0)",
        "            await bus.publish(subject, body, headers)",
        "unit/engine/worker/test_results.py::test_the_first_result_of_a_task_counts",
    ),
    _runtime(
        "an answered handoff is not run again", "engine/worker/handoff_processor.py",
        "        if maybe_known and await self._has_result(handoff):", "        if False:",
        "unit/engine/worker/test_handoffs.py::test_a_redelivered_handoff_with_a_result_is_not_run_again",
    ),
    _runtime(
        "a handoff that kills its workers is abandoned", "engine/worker/handoff_processor.py",
        "        if in_flight.delivery.delivered > most:", "        if False:",
        "unit/engine/worker/test_handoffs.py::test_a_handoff_that_kills_its_workers_is_given_up",
    ),
    _core(
        "a late result has no effect", "results.py",
        "    if task.attempt != result.attempt or not task.active:", "    if False:",
        "test_decide.py::test_the_result_of_an_attempt_that_was_given_up_is_late",
        "test_decide.py::test_second_result_of_an_attempt_is_recorded_and_the_first_stays",
    ),
    _core(
        "a foreign result has no effect", "results.py", "    if task.agent != result.agent:", "    if False:",
        "test_decide.py::test_a_foreign_result_is_recorded_once_and_changes_nothing",
    ),
    _core(
        "a redelivered result changes nothing", "results.py", "    if task.event_id == received.event_id:",
        "    if False:",
        "test_decide.py::test_a_redelivered_result_changes_nothing",
    ),
    _core(
        "nothing follows the end", "decide.py",
        "        if not decision.ended or _is_resume(each):\n", "        if True:\n",
        "test_decide.py::test_nothing_is_recorded_after_the_end",
    ),
    _core(
        "another plan keeps tasks that wait for a person", "budget/team_quota.py",
        "    staying = (TaskStatus.FAILED, TaskStatus.AWAITING_ANSWER)", "    staying = (TaskStatus.FAILED,)",
        "budget/test_team_quota.py::test_open_approval_survives_a_replan",
    ),
    _core(
        "running attempts reserve a budget", "budget/reservation.py", "        room = bound - used - aside[name] - kept",
        "        room = bound - used - kept",
        "budget/test_reservation.py::test_used_and_reserved_budget_stays_within_every_limit",
    ),
    _core(
        "a question without an answer is rejected", "questions/answers.py",
        "        if decision.now >= pending.expires_at and pending.id in decision.state.questions:", "        if False:",
        "tasks/test_questions.py::test_a_question_without_an_answer_is_rejected",
    ),
    _runtime(
        "an approval is for one call", "authoring/tools.py",
        "        state.record.start_approved_call(key, verdict.tool, verdict.arguments)", "        pass",
        "unit/engine/operations/test_questions.py::test_approval_is_for_one_call_and_an_equal_call_is_asked_about_again",
    ),
    _runtime(
        "an approval is for one call", "authoring/tool_turns.py",
        "                    allowed.append((said.tool, said.arguments))", "                    pass",
        "unit/engine/operations/test_questions.py::test_approval_is_for_one_call_and_an_equal_call_is_asked_about_again",
    ),
    _runtime(
        "an approval is for one call, also by code", "authoring/attempt_record.py",
        "            self.start_approved_call(call.id, call.name, arguments)", "            pass",
        "unit/engine/worker/test_approved_calls.py::test_approval_used_by_code_stays_used_for_a_successor",
    ),
    _runtime(
        "an approval is for one call, also by code", "authoring/tools.py",
        "                recorded = self.approval and from_code", "                recorded = False",
        "unit/engine/worker/test_approved_calls.py::"
        "test_approved_call_is_not_repeated_when_code_restarts",
    ),
    _runtime(
        "an answer is stored before its tools run", "authoring/durable_steps.py",
        "            stored = await state.record.append(step)\n        except OversizeEventError as error:\n",
        "            _record = step\n        except OversizeEventError as error:\n",
        "unit/engine/worker/test_step_journal.py::test_an_answer_is_on_the_bus_before_its_tools_run",
    ),
    _runtime(
        "a finished tool is not repeated", "authoring/tool_turns.py",
        "        if (kept := done.tool_result(*place)) is not None:", "        if (kept := None) is not None:",
        "unit/engine/worker/test_step_journal.py::test_resumed_attempt_repeats_only_unfinished_work",
    ),
    _runtime(
        "a continued attempt has the reports of finished tools", "authoring/attempt_record.py",
        "                self._usage.add(step.usage)", "                pass",
        "unit/engine/worker/test_step_journal.py::"
        "test_usage_of_a_finished_tool_is_reported_by_a_successor",
    ),
    _runtime(
        "an interrupted tool is not repeated", "authoring/tool_turns.py",
        "and not self.tools[call.name].idempotent:", "and False:",
        "unit/engine/worker/test_step_journal.py::test_interrupted_non_idempotent_tool_ends_the_attempt_as_unknown",
    ),
    _runtime(
        "the usage of an abandoned attempt counts", "engine/worker/attempt.py",
        "if step.attempt == self.handoff.attempt", "if False",
        "unit/engine/worker/test_step_journal.py::test_abandoned_attempt_has_the_usage_of_its_steps",
    ),
    _runtime(
        "a lost model call counts", "authoring/durable_steps.py",
        "        self._lost = self._state.deliveries - 1", "        self._lost = 0",
        "unit/engine/worker/test_step_journal.py::test_a_worker_that_died_while_its_model_answered_leaves_that_call_counted",
    ),
    _runtime(
        "unsettled messages are not removed", "engine/supervisor/retention.py",
        "since = _NEVER if stored.sequence >= untaken else", "since = _NEVER if False else",
        "unit/engine/supervisor/test_retention.py::test_request_without_a_team_is_kept_for_a_year_and_served",
    ),
    _runtime(
        "messages of a running workflow are not removed", "engine/supervisor/retention.py",
        "else await self._ended_at(stored.subject)", "else _DISTANT_PAST",
        "unit/engine/supervisor/test_retention.py::test_workflow_longer_than_the_retention_ends_normally",
    ),
    _runtime(
        "a log is kept as long as its request may be repeated", "engine/supervisor/retention.py",
        "self._ends[workflow_of_request(stored)] = _NEVER", "pass",
        "unit/engine/supervisor/test_retention.py::test_log_is_kept_while_its_request_may_be_repeated",
    ),
    _runtime(
        "a body is kept as long as a message refers to it", "engine/supervisor/retention.py",
        "until = min((self._began, *oldest)) - _BODY_RETENTION", "until = self._began - _BODY_RETENTION",
        "unit/engine/supervisor/test_retention.py::test_request_without_a_team_is_kept_for_a_year_and_served",
    ),
    _runtime(
        "a digest depends only on the seed", "testing/simulation.py", "_NumberedTask(work, loop=loop, **more)",
        "asyncio.Task(work, loop=loop, **more)",
        "unit/testing/test_simulation.py::test_a_task_group_cancels_its_tasks_in_the_order_they_began",
    ),
)  # fmt: skip
