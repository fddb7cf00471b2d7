"""The modules that authors of agents use; import their names from `pointsman`.

Agents          agent, team_agent, code_digest, llm_agent, definition_checks, agent_factory, signatures, json_types,
                lifespan, interceptor, keyword_check
The attempt     context, files, attempt_state, attempt_record, durable_steps, questions, user_messages,
                ports
Tools           tools, tool_arguments, tool_turns, model_calls, model_files, ask_person, mcp, mcp_tool
"""
