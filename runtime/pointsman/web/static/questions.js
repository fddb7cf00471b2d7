// Open questions: information that an agent or a planner needs, or the approval of a task, a tool call or a plan.

import { arrange, empty, h, note, once, setText } from "./dom.js";
import { clock, pretty, until } from "./format.js";
import { follow, post } from "./live.js";
import { isValid, schemaForm } from "./schema_form.js";

const ABOUT = { task: "is to start a task", tool: "wants to use a tool", plan: "is to follow a plan", information: "asks" };

export function questionsPage(main) {
  document.title = "Questions · Pointsman";
  const list = h("ol", { class: "letters", "aria-label": "Open questions, oldest first" });
  const nothing = h("div", {});
  main.append(h("div", { class: "head-line" }, h("h1", { text: "Questions" }), h("p", { class: "muted", text: "Workflows that wait for a person. Without an answer in time, the default counts. Without a default, the answer is no." })), list, nothing);
  const elements = new Map();

  follow("/api/live/questions", {
    questions: ({ questions }) => {
      for (const id of elements.keys()) if (!questions.some((one) => one.id === id)) elements.delete(id);
      arrange(list, questions.map((one) => {
        if (!elements.has(one.id)) elements.set(one.id, questionElement(one));
        return elements.get(one.id);
      }));
      nothing.replaceChildren(...(questions.length ? [] : [empty("No open questions.", "Agents that ask, and tools, tasks and plans that need an approval, appear here.")]));
    },
  });
  const tick = setInterval(() => { for (const element of elements.values()) element.tick(); }, 1000);
  return () => clearInterval(tick);
}

export function questionElement(one, { link = true } = {}) {
  const informs = one.about === "information";
  const reason = h("input", { placeholder: "Why not? The agent that asked receives the reason", "aria-label": "Why not" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const left = h("span", { class: "muted number", title: clock(one.expires_at) });
  const form = informs ? schemaForm(one.input_schema, "Answer", one.has_default ? one.default : undefined) : null;
  const field = form ? form.element : h("textarea", { rows: "6", spellcheck: "false", "aria-label": "Input" });
  if (!form) field.value = pretty(one.input);
  const yes = informs ? "Answer" : "Approve", no = informs ? "Decline" : "Reject";
  const buttons = [
    h("button", { type: "button", class: "primary", "data-needs": "approve", text: yes, "aria-label": `${yes} ${one.id}`, onclick: once(() => send(informs ? "answer" : "approve")) }),
    h("button", { type: "button", class: "danger", "data-needs": "approve", text: no, "aria-label": `${no} ${one.id}`, onclick: once(() => send("reject")) }),
  ];

  let sending = false; // with one of the two buttons
  async function send(action) {
    if (sending) return;
    let body = { reason: reason.value };
    if (action === "answer" && !isValid(field)) return;
    try {
      if (action === "answer") body = { answer: form.read() };
      if (action === "approve") body = field.value === pretty(one.input) ? {} : { input: JSON.parse(field.value) };
    } catch (error) { fail(action === "answer" ? error.message : `The input is not valid JSON: ${error.message}`); return; }
    sending = true;
    const done = await post(`/api/questions/${one.id}/${action}`, body);
    sending = false;
    if (done.ok) note(done.said, done.counted === false ? "bad" : "plain");
    else fail(done.error);
  }
  const fail = (said) => { problem.textContent = said; problem.hidden = false; };

  const element = h("li", { class: "letter", tabindex: "-1" },
    h("div", { class: "letter-head" },
      h("span", { class: "status warn", text: one.tool ? `${one.agent} wants to use ${one.tool}` : `${one.agent || one.team} ${ABOUT[one.about]}` }),
      left, link ? h("a", { href: `/workflows/${one.workflow_id}`, class: "number", text: one.workflow_id }) : ""),
    informs ? h("p", { class: "cause", text: one.text }) : "",
    one.intent ? h("p", { class: informs ? "muted" : "cause", text: one.intent }) : "",
    informs ? h("div", { class: "answer-form" }, field) : h("details", { class: "letter-body", open: one.about !== "plan" }, h("summary", { text: "Show and edit the input" }), field),
    h("details", { class: "letter-body" }, h("summary", { text: `Show the request to ${one.team}, and the results so far` }),
      h("pre", { text: pretty(one.request) }),
      one.known.map((report) => h("pre", { text: `${report.task_id} of ${report.agent}: ${pretty(report.output)}` }))),
    problem,
    h("div", { class: "letter-foot" }, reason, h("p", { class: "buttons" }, buttons)));
  element.tick = () => setText(left, until(one.expires_at));
  element.tick();
  return element;
}
