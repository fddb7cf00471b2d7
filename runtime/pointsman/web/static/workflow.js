// One workflow: the state, the answer, the plan, the timeline and the events.

import { command, copyable, empty, h, note, once, setText } from "./dom.js";
import { eventList } from "./events.js";
import { fileLink } from "./files.js";
import { clock, money, number, readable, seconds, setNow, span, STRATEGY, tone, whose, word } from "./format.js";
import { planGraph } from "./graph.js";
import { follow, post } from "./live.js";
import { messagesPanel } from "./messages.js";
import { askFor } from "./request.js";
import { timeline } from "./timeline.js";

export function workflowPage(main, id, go) {
  let team = new URLSearchParams(location.search).get("team");
  document.title = `${id} · Pointsman`;
  let chosen = "";
  let view = null;

  const select = (task) => {
    chosen = task === chosen ? "" : task;
    graph.mark(chosen);
    lanes.mark(chosen);
    events.only(chosen);
    showTask();
  };
  const graph = planGraph(select);
  const lanes = timeline(select);
  const events = eventList(() => select(chosen));

  const state = h("span", { class: "status", role: "status", hidden: true });
  const title = h("h1", { class: "asked" });
  const ask = h("p", { class: "why", hidden: true }, "The workflow waits for a person: ", h("a", { href: "/questions", text: "answer in Questions" }), ".");
  const facts = h("dl", { class: "facts" });
  const ids = h("dl", { class: "ids" });
  const below = h("dd", { class: "below" });
  const teams = h("div", { hidden: true }, h("dt", { text: "Handed to" }), below);
  const lettersLink = h("a", { href: `/dead-letters?text=${id}` });
  const lettersOf = h("div", { hidden: true }, h("dt", { text: "Not processed" }), h("dd", {}, lettersLink));
  const stopIt = h("button", { type: "button", class: "danger", "data-needs": "operate", text: "Cancel", hidden: true, onclick: once(cancel) });
  const resumeIt = h("button", { type: "button", "data-needs": "operate", text: "Resume", hidden: true, onclick: once(resume),
    title: "Do the failed tasks again; existing results stay" });
  const again = h("button", { type: "button", "data-needs": "operate", text: "Ask again", hidden: true, onclick: () => askFor(go, { team: view.team, input: view.input }) });
  const take = h("a", { class: "button", href: `/api/workflows/${id}/export`, download: `${id}.json`, text: "Export", hidden: true,
    title: "The whole workflow in a file, for pointsman import and pointsman replay" });
  const files = h("section", { class: "panel", "aria-labelledby": "files", hidden: true });
  const answer = h("section", { class: "panel answer", "aria-labelledby": "answer", hidden: true });
  const messages = messagesPanel(id);
  const task = h("p", { class: "task-detail", hidden: true });
  const goal = h("span", { class: "muted" });
  const whole = h("div", { hidden: true },
    answer,
    files,
    messages.element,
    panel("plan", "Plan", [goal], graph.element, task),
    panel("timeline", "Timeline", [], lanes.element),
    panel("events", "Events", [events.tools], events.element));
  const waiting = h("div", {});
  main.append(
    h("div", { class: "head-line" }, h("a", { href: "/", class: "back", text: "← Workflows" }), h("div", { class: "buttons" }, take, again, resumeIt, stopIt)),
    h("div", { class: "title" }, state, title), ask, facts, ids, waiting, whole);

  async function cancel() {
    const done = await post(`/api/workflows/${id}/cancel`, { reason: "cancelled in the dashboard" });
    note(done.ok ? "The cancellation was requested." : done.error, done.ok ? "plain" : "bad");
  }

  async function resume() {
    const done = await post(`/api/workflows/${id}/resume`, { reason: "resumed in the dashboard" });
    note(done.ok ? "The workflow continues. The failed tasks are done again." : done.error, done.ok ? "plain" : "bad");
  }

  function absent(said) {
    if (view) return;
    stopIt.hidden = !said.team;
    team = said.team || team;
    setText(title, said.input ? readable(said.input) : id);
    waiting.replaceChildren(team
      ? empty(`Waiting for a supervisor of ${team}`, "The request is stored. The workflow begins when a supervisor admits the request. This page then shows the workflow.", "If nothing happens, find the cause:", command(`pointsman doctor ${team}`))
      : empty("There is no such workflow.", "Its log has expired, or the id or the namespace is wrong. A new request appears when a supervisor admits it.", command("pointsman list")));
  }

  function show(next) {
    view = next;
    setNow(view.now);
    waiting.replaceChildren();
    whole.hidden = false;
    setText(title, view.request);
    title.title = readable(view.input);
    again.hidden = Boolean(view.parent) || !view.input; // not for a request that came from another team or could not be read
    take.hidden = false;
    document.title = `${word(view.status)}: ${view.request.slice(0, 60)} · Pointsman`;
    state.hidden = false;
    state.className = `status ${tone(view.status)}`;
    setText(state, word(view.status));
    ask.hidden = view.status !== "waiting for an answer";
    stopIt.hidden = Boolean(view.ended_at);
    resumeIt.hidden = Boolean(view.parent) || !view.input || !["failed", "partial"].includes(view.status);
    lettersOf.hidden = !view.letters;
    setText(lettersLink, view.letters === 1 ? "1 dead letter" : `${number(view.letters || 0)} dead letters`);
    showFacts();
    showTeams();
    showAnswer();
    showFiles();
    messages.show(view);
    showProgress();
    graph.draw(view.tasks, view.needs);
    lanes.draw(view);
    graph.mark(chosen);
    lanes.mark(chosen);
    showTask();
  }

  function showFiles() {
    files.hidden = !view.files.length;
    if (files.dataset.count === String(view.files.length)) return;
    files.dataset.count = view.files.length;
    files.replaceChildren(h("h2", { id: "files", text: "Files" }),
      h("ul", {}, ...view.files.map((one) => h("li", {},
        fileLink(id, one),
        h("span", { class: "muted", text: ` ${one.media_type}, ${number(one.size)} bytes, ${one.origin === "request" ? "of the request" : `from ${one.origin}`}` })))));
  }

  function showProgress() {
    const work = view.tasks.filter((one) => one.role === "work");
    const done = work.filter((one) => one.status === "succeeded").length;
    const retold = view.plan && view.plan.revision > 1 ? `, plan ${view.plan.revision}` : "";
    setText(goal, work.length ? `${number(done)} of ${number(work.length)} task${work.length > 1 ? "s" : ""} done${retold}` : "");
    goal.title = (view.plan && view.plan.goal) || "";
  }

  function showFacts() {
    const used = view.usage;
    const outcome = view.outcome;
    const saved = outcome && outcome.sequential > outcome.elapsed ? `${seconds(outcome.elapsed)}, one after another ${seconds(outcome.sequential)}` : seconds(span(view.started_at, view.ended_at));
    facts.replaceChildren(...[
      fact("Team", `${view.team}, ${STRATEGY[view.strategy] || view.strategy.replaceAll("_", " ")}`), fact("Started", clock(view.started_at)), fact(view.ended_at ? "Took" : "Running for", saved),
      used.calls ? fact("Model calls", number(used.calls)) : "",
      used.input_tokens + used.output_tokens ? fact("Tokens", `${number(used.input_tokens)} in, ${number(used.output_tokens)} out`) : "",
      used.cost ? fact("Cost", money(used.cost)) : "",
    ].filter(Boolean));
    if (ids.childElementCount) return; // the ids do not change
    ids.append(...[
      fact("Workflow", copyable(view.id, "the id")),
      fact("Trace", copyable(view.trace_id, "the trace id")),
      view.parent ? fact("Part of", h("a", { href: `/workflows/${view.parent}`, text: view.parent })) : "",
      teams,
      lettersOf,
    ].filter(Boolean));
  }

  function showTeams() {
    const asked = view.children;
    teams.hidden = !asked.length;
    below.append(...asked.slice(below.childElementCount).map(({ task_id: of, attempt, agent, workflow }) =>
      h("a", { href: `/workflows/${workflow}`, text: `${whose(agent, of)}${attempt > 1 ? `, attempt ${attempt}` : ""}` })));
  }

  function showAnswer() {
    const outcome = view.outcome;
    answer.hidden = !outcome;
    if (!outcome || answer.dataset.of === outcome.status && answer.dataset.round === String(outcome.round)) return;
    answer.dataset.of = outcome.status;
    answer.dataset.round = outcome.round;
    const text = readable(outcome.answer);
    answer.replaceChildren(...[
      h("h2", { id: "answer", text: "Answer" }),
      text ? h("div", { class: "text", text }) : h("p", { class: "muted", text: outcome.reason || "There is no answer." }),
      text && outcome.reason && !told(outcome) ? h("p", { class: "why" }, h("b", { text: "Ended early: " }), outcome.reason) : "",
      outcome.gaps.length ? h("div", { class: "gaps" }, h("h3", { text: "Missing from the answer" }),
        h("ul", {}, missing(outcome.gaps).map(([agent, reason, tasks]) => h("li", {}, h("b", { text: whose(agent, tasks.join(", ")) }), ` ${reason}`)))) : "",
    ].filter(Boolean));
  }

  function showTask() {
    const found = chosen && view && view.tasks.find((one) => one.task_id === chosen);
    task.hidden = !found;
    if (!found) return;
    const child = view.children.findLast((one) => one.task_id === chosen);
    task.replaceChildren(h("span", { class: `status ${tone(found.status)}`, text: word(found.status) }), h("b", { text: ` ${whose(found.agent, found.task_id)} ` }), found.detail || "",
      child ? h("a", { href: `/workflows/${child.workflow}`, text: " Open the team's workflow" }) : "");
  }

  follow(`/api/live/workflows/${id}`, {
    absent, lines: (lines) => events.add(lines), view: show,
    broken: ({ error }) => waiting.replaceChildren(empty("This log cannot be read.", error)),
  }, events.reset);
  const tick = setInterval(() => {
    if (!view || view.ended_at) return;
    showFacts();
    graph.tick(view.tasks);
    lanes.tick();
  }, 1000);
  return () => clearInterval(tick);
}

function panel(id, name, tools, ...content) {
  return h("section", { class: "panel", "aria-labelledby": id }, h("div", { class: "panel-head" }, h("h2", { id, text: name }), tools), content);
}

// Group the missing tasks by reason.
function missing(gaps) {
  const found = new Map();
  for (const { agent, reason, task_id: of } of gaps) {
    const key = JSON.stringify([agent, reason]);
    if (!found.has(key)) found.set(key, [agent, reason, []]);
    found.get(key)[2].push(of);
  }
  return [...found.values()];
}

// Return true if the reason only repeats the missing tasks and their reasons.
function told({ reason, gaps }) {
  const more = gaps.reduce((left, gap) => left.replace(`${gap.task_id}: ${gap.reason}`, () => ""), reason);
  return !/[^; ]/.test(more);
}

const fact = (name, value) => h("div", {}, h("dt", { text: name }), h("dd", { class: "number" }, value));
