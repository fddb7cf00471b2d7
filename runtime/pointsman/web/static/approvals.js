// Open approvals: the task, the tool call or the plan, and the answer: approve (maybe with an edited input) or reject.

import { arrange, empty, h, note, once, setText } from "./dom.js";
import { clock, pretty, until } from "./format.js";
import { follow, post } from "./live.js";

const ABOUT = { task: "is to start a task", tool: "wants to use a tool", plan: "is to follow a plan" };

export function approvalsPage(main) {
  document.title = "Approvals · Pointsman";
  const list = h("ol", { class: "letters", "aria-label": "Open approvals, oldest first" });
  const nothing = h("div", {});
  main.append(h("div", { class: "head-line" }, h("h1", { text: "Approvals" }), h("p", { class: "muted", text: "Workflows that wait for a person. A request without an answer in time is rejected." })), list, nothing);
  const elements = new Map();

  follow("/api/live/approvals", {
    approvals: ({ approvals }) => {
      for (const id of elements.keys()) if (!approvals.some((one) => one.id === id)) elements.delete(id);
      arrange(list, approvals.map((one) => {
        if (!elements.has(one.id)) elements.set(one.id, approvalElement(one));
        return elements.get(one.id);
      }));
      nothing.replaceChildren(...(approvals.length ? [] : [empty("No open approvals.", "Tools, tasks and plans that need an approval appear here.")]));
    },
  });
  const tick = setInterval(() => { for (const element of elements.values()) element.tick(); }, 1000);
  return () => clearInterval(tick);
}

function approvalElement(one) {
  const input = h("textarea", { rows: "6", spellcheck: "false", "aria-label": "Input" });
  input.value = pretty(one.input);
  const reason = h("input", { placeholder: "Why not? The agent that asked receives the reason", "aria-label": "Why not" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const left = h("span", { class: "muted number", title: clock(one.expires_at) });
  const buttons = [
    h("button", { type: "button", class: "primary", "data-needs": "approve", text: "Approve", "aria-label": `Approve ${one.id}`, onclick: once(() => answer("approve")) }),
    h("button", { type: "button", class: "danger", "data-needs": "approve", text: "Reject", "aria-label": `Reject ${one.id}`, onclick: once(() => answer("reject")) }),
  ];

  let answering = false; // with one button or the other
  async function answer(action) {
    if (answering) return;
    let body = { reason: reason.value };
    if (action === "approve") {
      body = {};
      if (input.value !== pretty(one.input)) {
        try { body.input = JSON.parse(input.value); } catch (error) { fail(`The input is not valid JSON: ${error.message}`); return; }
      }
    }
    answering = true;
    const done = await post(`/api/approvals/${one.id}/${action}`, body);
    answering = false;
    if (done.ok) note(done.said, done.counted === false ? "bad" : "plain");
    else fail(done.error);
  }
  const fail = (said) => { problem.textContent = said; problem.hidden = false; };

  const element = h("li", { class: "letter", tabindex: "-1" },
    h("div", { class: "letter-head" },
      h("span", { class: "status warn", text: one.tool ? `${one.agent} wants to use ${one.tool}` : `${one.agent || one.team} ${ABOUT[one.about]}` }),
      left, h("a", { href: `/workflows/${one.workflow_id}`, class: "number", text: one.workflow_id })),
    one.intent ? h("p", { class: "cause", text: one.intent }) : "",
    h("details", { class: "letter-body", open: one.about !== "plan" }, h("summary", { text: "Show and edit the input" }), input),
    problem,
    h("div", { class: "letter-foot" }, reason, h("p", { class: "buttons" }, buttons)));
  element.tick = () => setText(left, until(one.expires_at));
  element.tick();
  return element;
}
