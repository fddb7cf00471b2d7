"""The modules that authors of agents use; import their names from `pointsman`.

Agents          agent, llm_agent, agent_factory, signatures, lifespan, interceptor
The attempt     context, attempt_state, attempt_record, durable_steps, ports
Tools           tools, tool_turns, model_calls, mcp
"""
