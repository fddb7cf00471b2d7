// Run teams of a gateway with the official client of AG-UI. The client throws if a stream breaks a rule of the protocol.
// Usage: node conformance.mjs ADDRESS
import assert from "node:assert/strict";
import { HttpAgent } from "@ag-ui/client";

const address = process.argv[2];
const SECONDS = 60;

function agentOf(team, text) {
  const messages = [{ id: "m-1", role: "user", content: text }];
  return new HttpAgent({ url: `${address}/v1/agui/${team}`, threadId: crypto.randomUUID(), initialMessages: messages });
}

async function run(agent, parameters = {}) {
  const events = [];
  const result = await agent.runAgent(parameters, { onEvent: ({ event }) => void events.push(event) });
  return { events, types: events.map((event) => event.type), result, last: events.at(-1) };
}

const checks = {
  async "a run streams its work and ends with the answer"() {
    const agent = agentOf("crew", "hello");
    const { types, last } = await run(agent);
    assert.equal(types[0], "RUN_STARTED");
    assert.equal(last.type, "RUN_FINISHED");
    for (const type of ["STATE_SNAPSHOT", "STATE_DELTA", "STEP_STARTED", "TOOL_CALL_START", "TEXT_MESSAGE_CONTENT"]) {
      assert.ok(types.includes(type), type);
    }
    assert.equal(agent.state.status, "completed");
    assert.equal(agent.messages.at(-1).content, last.result);
  },

  async "a repeated run is the same workflow"() {
    const ids = [];
    const threadId = crypto.randomUUID();
    for (const _ of [1, 2]) {
      const agent = agentOf("crew", "hello");
      agent.threadId = threadId;
      await run(agent, { runId: "r-1" });
      ids.push(agent.state.workflow_id);
    }
    assert.equal(ids[0], ids[1]);
  },

  async "a question interrupts the run and the next run answers it"() {
    const agent = agentOf("alone", "ask me");
    const first = await run(agent);
    const [interrupt] = first.last.outcome.interrupts;
    assert.equal(interrupt.message, "Which account?");
    const resume = [{ interruptId: interrupt.id, status: "resolved", payload: "south" }];
    const second = await run(agent, { resume });
    assert.equal(second.last.type, "RUN_FINISHED");
    assert.match(JSON.stringify(second.last.result), /south/);
  },

  async "an approval that is refused ends the workflow"() {
    const agent = agentOf("strict", "hello");
    const first = await run(agent);
    const [interrupt] = first.last.outcome.interrupts;
    assert.equal(interrupt.reason, "approval_of_plan");
    const payload = { approved: false, reason: "too dear" };
    const second = await run(agent, { resume: [{ interruptId: interrupt.id, status: "resolved", payload }] });
    assert.ok(["RUN_FINISHED", "RUN_ERROR"].includes(second.last.type));
  },

  async "a client that leaves ends its run"() {
    const agent = agentOf("crew", "wait");
    let workflow;
    const onEvent = ({ event }) => {
      workflow ??= event.snapshot?.workflow_id;
      if (event.type === "TOOL_CALL_START") agent.abortRun();
    };
    await agent.runAgent({}, { onEvent }).catch(() => undefined);
    for (let status = ""; status !== "cancelled"; await new Promise((resolve) => setTimeout(resolve, 100))) {
      ({ status } = await (await fetch(`${address}/v1/workflows/${workflow}`)).json());
    }
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  const late = new Promise((_, reject) =>
    setTimeout(() => reject(new Error(`no end within ${SECONDS} s`)), SECONDS * 1_000).unref(),
  );
  try {
    await Promise.race([check(), late]);
    console.log(`passed: ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED: ${name}\n${error.stack}`);
  }
}
process.exit(failed ? 1 : 0);
