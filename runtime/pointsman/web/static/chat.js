// One conversation: the turns and their work, live text of models, open questions, files, and the next turn.

import { arrange, copyable, empty, h, note, once, setText } from "./dom.js";
import { ago, clock, money, number, readable, seconds, span, tone, whose, word } from "./format.js";
import { fileLink, fileSize } from "./files.js";
import { follow, post } from "./live.js";
import { me } from "./me.js";
import { questionElement } from "./questions.js";
import { composer } from "./composer.js";

const CUT = 4000; // characters of a text in the record of a thread
const NEAR = 120; // pixels; if the end of the page is at most so far away, new content is scrolled into view

export function chatPage(main, path) {
  const [team, caller, thread] = path.split("/");
  document.title = `${team} · Pointsman`;
  const turns = new Map();
  let order = [];
  let mine = false;

  const list = h("ol", { class: "turns", "aria-label": "Conversation" });
  const earlier = h("details", { class: "earlier", hidden: true }, h("summary", {}), h("div", { class: "text" }));
  const gone = h("p", { class: "why", hidden: true });
  const nothing = h("div", {});
  const heard = h("p", { class: "unseen", role: "status" }); // for screen readers; they do not read streaming text
  const next = composer({ team, thread, sent: (turn) => { draft(turn); end(); } });
  next.element.hidden = true;
  const foreign = h("p", { class: "muted foreign", hidden: true, text: `The conversation belongs to ${caller}. You can read the turns, but only ${caller} can continue the conversation.` });
  main.append(
    h("div", { class: "head-line" }, h("a", { href: "/threads", class: "back", text: "← Conversations" }), h("h1", { text: team }),
      h("dl", { class: "ids" }, fact("Caller", caller), fact("Thread", copyable(thread, "the id of the thread")))),
    gone, earlier, list, nothing, heard, foreign, next.element);

  const say = (text) => setText(heard, text);
  const end = () => scrollTo(0, document.documentElement.scrollHeight);
  const turnOf = (id) => {
    if (!turns.has(id)) turns.set(id, turnElement(id, say));
    return turns.get(id);
  };

  function draft({ id, request }) {
    turnOf(id).draft({ id, status: "waiting for admission", request, answer: "", asked_at: new Date().toISOString() });
    if (!order.includes(id)) order.push(id);
    say("Sent.");
    draw();
  }

  function draw() {
    const near = document.documentElement.scrollHeight - scrollY - innerHeight < NEAR;
    arrange(list, order.map((id) => turnOf(id).element));
    nothing.replaceChildren(...(order.length ? [] : [empty("Nothing has been said yet.", `Write to ${team} below. Its agents receive the earlier turns of this conversation.`)]));
    if (near) end();
  }

  follow(`/api/live/threads/${path}`, {
    thread: (state) => {
      const unsent = order.filter((id) => !state.turns.includes(id) && turnOf(id).isDraft());
      order = [...state.turns, ...unsent];
      earlier.hidden = !state.earlier && !state.summary;
      setText(earlier.firstChild, `${number(state.earlier)} earlier ${state.earlier === 1 ? "turn" : "turns"}${state.summary ? ", summarized" : ""}`);
      setText(earlier.lastChild, state.summary || "There is no summary. The workflows have the texts.");
      gone.hidden = !state.deleted_at;
      setText(gone, state.deleted_at ? `${state.deleted_by} deleted the conversation ${ago(state.deleted_at)}. It takes no further turn.` : "");
      next.element.hidden = !mine || Boolean(state.deleted_at);
      draw();
    },
    turn: (turn) => { turnOf(turn.id).record(turn); draw(); },
    work: (view) => { turnOf(view.id).work(view); draw(); },
    text: ({ pieces }) => { for (const piece of pieces) turnOf(piece.workflow).write(piece); draw(); },
    asked: ({ questions }) => { for (const turn of turns.values()) turn.ask(questions); draw(); },
  }, () => { for (const turn of turns.values()) turn.forgetText(); });

  me.then((user) => {
    mine = Boolean(user) && user.caller === caller;
    foreign.hidden = mine;
    next.element.hidden = !mine || !gone.hidden;
    if (mine && [document.body, main].includes(document.activeElement)) next.focus(); // the user may have moved the focus
  });
  const tick = setInterval(() => { for (const turn of turns.values()) turn.tick(); }, 1000);
  return () => clearInterval(tick);
}

function turnElement(id, say) {
  let [turn, view] = [null, null];
  let asked = [];
  // By task and agent, because an agent can name any task but only itself. The newest attempt replaces earlier text.
  const texts = new Map();
  const state = h("span", { class: "status" });
  const when = h("a", { href: `/workflows/${id}`, class: "number muted" });
  const stopIt = h("button", { type: "button", class: "danger", "data-needs": "operate", text: "Cancel", "aria-label": "Cancel this turn", hidden: true, onclick: once(cancel) });
  const request = h("div", { class: "text" });
  const given = h("ul", { class: "files", "aria-label": "Files of the request" });
  const steps = h("ol", { class: "work", "aria-label": "Work" });
  const work = h("details", { class: "steps", hidden: true }, h("summary", {}), steps);
  const questions = h("ol", { class: "letters", "aria-label": "Questions", hidden: true });
  const answer = h("div", { class: "text", hidden: true });
  const why = h("p", { class: "why", hidden: true });
  const made = h("ul", { class: "files", "aria-label": "Files of the answer" });
  const used = h("p", { class: "muted number used" });
  const element = h("li", { class: "turn", "data-workflow": id },
    h("section", { class: "said", "aria-label": "Request" }, request, given),
    h("section", { class: "reply", "aria-label": "Answer" },
      h("p", { class: "reply-head" }, state, when, stopIt), work, questions, answer, why, made, used));
  const rows = new Map();
  const forms = new Map();
  let told = "";

  async function cancel() {
    const done = await post(`/api/workflows/${id}/cancel`, { reason: "cancelled in the dashboard" });
    note(done.ok ? "The cancellation was requested." : done.error, done.ok ? "plain" : "bad");
  }

  function update() {
    const status = (view && (view.ended_at || view.status === "waiting for an answer") && view.status) || (turn ? (turn.status === "queued" ? "waiting for admission" : turn.status) : "running");
    const over = Boolean((view && view.outcome) || (turn && turn.ended_at));
    element.classList.toggle("open", !over);
    state.className = `status ${tone(status)}`;
    setText(state, turn && turn.status === "queued" ? "Waits for its turn" : word(status));
    stopIt.hidden = over;
    setText(request, (view && view.request) || (turn ? turn.request : ""));
    showFiles();
    showWork(over);
    showAnswer(over);
    tick();
    announce(status, over);
  }

  function showFiles() {
    const files = (view && view.files) || [];
    for (const [of, shown] of [[given, files.filter((one) => one.origin === "request")], [made, files.filter((one) => one.origin !== "request")]]) {
      of.hidden = !shown.length;
      if (of.childElementCount !== shown.length) of.replaceChildren(...shown.map((one) => h("li", {}, fileLink(id, one), h("span", { class: "muted", text: ` ${fileSize(one.size)}` }))));
    }
  }

  function showWork(over) {
    const tasks = (view && view.tasks) || [];
    work.hidden = !tasks.length;
    if (!tasks.length) return;
    const done = tasks.filter((one) => one.status === "succeeded").length;
    setText(work.firstChild, over ? `${number(tasks.length)} ${tasks.length === 1 ? "step" : "steps"}` : `${number(done)} of ${number(tasks.length)} steps done`);
    if (over && !work.dataset.ended) { work.dataset.ended = "yes"; work.open = false; } else if (!over && !work.dataset.begun) { work.dataset.begun = "yes"; work.open = true; }
    for (const key of rows.keys()) if (!tasks.some((one) => one.task_id === key)) rows.delete(key);
    arrange(steps, tasks.map((task) => {
      if (!rows.has(task.task_id)) rows.set(task.task_id, stepElement());
      const row = rows.get(task.task_id);
      const told = task.status === "running" && view.notes && view.notes[task.task_id];
      row.update(task, told || task.detail, over || task.task_id === answering().task_id ? "" : textOf(task));
      return row;
    }));
  }

  // The answer is the text of the synthesizer, or of the only agent that works.
  function answering() {
    const tasks = (view && view.tasks) || [];
    const writers = tasks.filter((one) => one.role === "synthesize");
    const work = tasks.filter((one) => one.role === "work");
    return writers.at(-1) || (work.length === 1 ? work[0] : { task_id: "", agent: "" });
  }

  const textOf = (task) => (texts.get(`${task.task_id} ${task.agent}`) || { text: "" }).text;

  function showAnswer(over) {
    const outcome = view && view.outcome;
    const stored = outcome ? readable(outcome.answer) : turn && turn.answer;
    const shown = over ? stored : textOf(answering());
    answer.hidden = !shown;
    answer.classList.toggle("writing", !over);
    setText(answer, shown || "");
    const cut = over && !outcome && turn && turn.answer.length >= CUT;
    const reason = outcome ? outcome.reason || outcome.gaps.map((gap) => `${whose(gap.agent, gap.task_id)} ${gap.reason}`).join("; ") : "";
    why.hidden = !reason && !cut;
    why.replaceChildren(cut ? h("a", { href: `/workflows/${id}`, text: "The answer is longer: open its workflow." }) : reason);
  }

  function announce(status, over) {
    const now = over ? `${word(status)}. ${answer.textContent}` : asked.length ? "A question waits for you." : status;
    if (now === told) return;
    const first = !told;
    told = now;
    if (!(first && over)) say(over ? now : asked.length ? now : word(status)); // screen readers do not announce earlier turns
  }

  function tick() {
    const at = turn ? turn.asked_at : view && view.started_at;
    setText(when, at ? ago(at) : "");
    when.title = at ? `${clock(at)}: open the workflow` : "";
    const outcome = view && view.outcome;
    const tokens = outcome ? outcome.usage.input_tokens + outcome.usage.output_tokens : 0;
    const parts = outcome ? [seconds(outcome.elapsed), tokens ? `${number(tokens)} tokens` : "", money(outcome.usage.cost)] : [view ? seconds(span(view.started_at)) : ""];
    setText(used, parts.filter(Boolean).join(" · "));
  }

  return {
    element,
    draft: (next) => { if (!turn && !view) { turn = next; update(); } }, // the record of the turn may arrive first
    record: (next) => { turn = next; update(); },
    work: (next) => { view = next; update(); },
    write: ({ task, attempt, agent, text, begins }) => {
      const key = `${task} ${agent}`;
      const before = texts.get(key);
      if (before && before.attempt > attempt) return;
      const goesOn = before && before.attempt === attempt && !begins;
      texts.set(key, { attempt, text: goesOn ? before.text + text : text });
      update();
    },
    ask: (all) => {
      const own = new Set([id, ...((view && view.children) || []).map((one) => one.workflow)]);
      asked = all.filter((one) => own.has(one.workflow_id));
      questions.hidden = !asked.length;
      for (const key of forms.keys()) if (!asked.some((one) => one.id === key)) forms.delete(key);
      arrange(questions, asked.map((one) => {
        if (!forms.has(one.id)) forms.set(one.id, questionElement(one, { link: false }));
        return forms.get(one.id);
      }));
      if (turn || view) update();
    },
    forgetText: () => texts.clear(),
    isDraft: () => Boolean(turn) && !view && turn.number === undefined,
    tick: () => {
      if (turn || view) tick();
      for (const form of forms.values()) form.tick();
    },
  };
}

// A task with the calls of the newest attempt, and the end of the text that a model writes.
function stepElement() {
  const state = h("span", { class: "status" });
  const name = h("b", {});
  const detail = h("span", { class: "muted" });
  const calls = h("ul", { class: "calls" });
  const text = h("p", { class: "muted writing" });
  const element = h("li", {}, h("p", { class: "step" }, state, name, detail), calls, text);
  element.update = (task, about, writes) => {
    state.className = `status ${tone(task.status)}`;
    setText(state, word(task.status));
    setText(name, ROLE[task.role] ? `${task.agent} ${ROLE[task.role]}` : whose(task.agent, task.task_id));
    setText(detail, task.status === "waiting for an answer" ? "" : about || ""); // the open question is shown below
    const made = ((task.children || []).at(-1) || {}).children || [];
    const tools = made.filter((call) => call.kind === "tool" || call.status !== "succeeded");
    calls.hidden = !tools.length;
    arrange(calls, tools.map((call, at) => {
      const row = calls.children[at] || h("li", {});
      row.className = tone(call.status);
      setText(row, `${call.name.replace(/^execute_tool /, "⚒ ").replace(/^chat /, "✎ ")} ${call.ended_at ? seconds(span(call.started_at, call.ended_at)) : "…"}`);
      return row;
    }));
    text.hidden = !writes;
    setText(text, writes.slice(-600));
  };
  return element;
}

const ROLE = { plan: "plans", classify: "chooses an agent", synthesize: "writes the answer", summarize: "summarizes", judge: "reviews", refine: "rewrites a task" };
const fact = (name, value) => h("div", {}, h("dt", { text: name }), h("dd", { class: "number" }, value));
