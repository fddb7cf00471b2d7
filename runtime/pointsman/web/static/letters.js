// The dead letters, with cause, event, and the actions replay and discard.

import { agree } from "./agree.js";
import { arrange, empty, h, note, once, setText } from "./dom.js";
import { ago, clock, number, pretty, whose } from "./format.js";
import { follow, get, post } from "./live.js";
import { pager } from "./pager.js";

const CAUSES = {
  handler_error: "The agent failed",
  invalid_input: "The input was not valid",
  invalid_output: "The output was not valid",
  invalid_plan: "The plan was not valid",
  insufficient: "Output was not good enough",
  oversize: "Too large",
  context_overflow: "Too long for the model",
  timeout: "Took too long",
  limit: "A limit was reached",
  worker_crashed: "The worker crashed",
  no_worker: "No worker took it",
  circuit_open: "The agent keeps failing",
  items_failed: "Too many items failed",
  refused: "Refused",
  rejected: "A person said no",
  needs_answer: "Needs an answer",
  thread_refused: "Refused by its thread",
  daily_limit: "A daily limit was reached",
  unanswered: "Unanswered",
  cancelled: "Cancelled",
  outcome_unknown: "The result is unknown",
  provider_error: "The model provider failed",
  team_failed: "The team failed",
  rate_limited: "Too many requests",
  undecodable: "Unreadable",
  late_result: "Came after the end",
  not_resumable: "Could not be resumed",
  unknown_type: "Unknown type of event",
  unknown_workflow: "Unknown workflow",
  request_id_taken: "Request id is already used",
  body_lost: "The body was lost",
};

export function lettersPage(main) {
  document.title = "Dead letters · Pointsman";
  const asked = new URLSearchParams(location.search);
  const search = h("input", { type: "search", "aria-label": "Search cause, origin, workflow", placeholder: "Search cause, origin, workflow  ( / )", value: asked.get("text") || "" });
  const replayAll = h("button", { type: "button", "data-needs": "operate", onclick: once(() => all("Replay")) });
  const discardAll = h("button", { type: "button", class: "danger", "data-needs": "operate", onclick: once(() => all("Discard")) });
  const list = h("ol", { class: "letters", "aria-label": "Dead letters, newest first" });
  const nothing = h("div", {});
  const tools = h("div", { class: "filters" }, search, replayAll, discardAll);
  const pages = pager(ask);
  main.append(h("div", { class: "head-line" }, h("h1", { text: "Dead letters" }), h("p", { class: "muted", text: "Events that could not be processed. Replay them when the cause is corrected." })), tools, list, nothing, pages.element);
  const elements = new Map();
  let text = asked.get("text") || "";
  let offset = Number(asked.get("offset") || 0);
  let shown = { letters: [], count: 0, size: 1, until: 0 };

  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(ask, 200, 0); });

  function ask(from = offset) {
    offset = from;
    text = search.value.trim();
    const query = new URLSearchParams();
    if (text) query.set("text", text);
    if (offset) query.set("offset", offset);
    const words = query.size ? `?${query}` : "";
    history.replaceState({}, "", `/dead-letters${words}`);
    follow(`/api/live/dead-letters${words}`, { letters: draw });
  }

  async function all(word) {
    const count = shown.count;
    const chosen = { text, until: shown.until };
    if (!(await agree(`${word} ${number(count)} dead letters${text ? ` that match “${text}”` : ""}?`, word, word === "Discard"))) return;
    const done = await post(`/api/dead-letters/${word.toLowerCase()}`, chosen);
    if (!done.ok) { note(done.error, "bad"); return; }
    const whole = done.done === done.of;
    note(`${word === "Replay" ? "Replayed" : "Discarded"} ${number(done.done)} of ${number(done.of)}.${whole || word !== "Replay" ? "" : " The workflows of the other letters have ended. Replay one of these letters to send the request again."}`, whole ? "plain" : "bad");
  }

  async function replay(letter, asNew = false) {
    const done = await post(`/api/dead-letters/${letter.id}/replay`, { as_new: asNew });
    if (done.ok) note(`Replayed: ${done.action === "request" ? "sent again as" : "continues in"} ${done.workflow}.`);
    else if (done.status === 409 && !asNew && letter.workflow) {
      if (await agree("Its workflow has ended, so the task cannot continue. Send the whole request again, as a new workflow?", "Send again")) await replay(letter, true);
    } else note(done.error, "bad");
  }

  async function discard(letter) {
    if (!(await agree("Discard this dead letter permanently?", "Discard", true))) return;
    const done = await post(`/api/dead-letters/${letter.id}/discard`);
    if (!done.ok) note(done.error, "bad");
  }

  function draw(got) {
    shown = got;
    if (offset && !got.letters.length) { ask(Math.max(0, offset - got.size)); return; } // the page of the letter no longer exists
    for (const id of elements.keys()) if (!got.letters.some((one) => one.id === id)) elements.delete(id);
    arrange(list, got.letters.map((one) => {
      if (!elements.has(one.id)) elements.set(one.id, letterElement(one, replay, discard));
      return elements.get(one.id);
    }));
    tools.hidden = !got.count && !text;
    replayAll.hidden = discardAll.hidden = got.count < 2;
    setText(replayAll, `Replay all ${number(got.count)}`);
    setText(discardAll, `Discard all ${number(got.count)}`);
    nothing.replaceChildren(...(got.count ? [] : [text ? empty("No dead letter matches.", "Search for something else.") : empty("No dead letters.", "An event that cannot be processed appears here with its cause. Its workflow still ends.")]));
    pages.show(offset, got.size, got.count);
  }

  ask();
  const clockTick = setInterval(() => { for (const element of elements.values()) element.tick(); }, 1000);
  return () => { clearInterval(clockTick); clearTimeout(typing); };
}

function letterElement(letter, replay, discard) {
  const body = h("pre", { tabindex: "0", "aria-label": "The complete event" });
  const facts = h("details", { class: "letter-body" }, h("summary", { text: "Show the event" }), body);
  facts.addEventListener("toggle", async () => {
    if (!facts.open || body.textContent) return;
    const whole = await get(`/api/dead-letters/${letter.id}`);
    body.textContent = whole ? pretty(whole) : "";
  });
  const when = h("time", { class: "muted number", datetime: letter.at, title: clock(letter.at) });
  const element = h("li", { class: "letter", tabindex: "-1" },
    h("div", { class: "letter-head" },
      h("span", { class: "status bad", title: letter.kind, text: CAUSES[letter.kind] || letter.kind.replaceAll("_", " ") }),
      h("b", { text: whose(letter.origin, letter.task) }),
      when,
      h("span", { class: "muted number", text: `${letter.attempts} ${letter.attempts === 1 ? "try" : "tries"}` }),
      letter.workflow ? h("a", { href: `/workflows/${letter.workflow}`, class: "number", text: letter.workflow }) : ""),
    h("p", { class: "cause", text: letter.message }),
    h("div", { class: "letter-foot" }, facts,
      h("p", { class: "buttons" },
        h("button", { type: "button", "data-needs": "operate", text: "Replay", "aria-label": `Replay ${letter.id}`, onclick: once(() => replay(letter)) }),
        h("button", { type: "button", class: "danger", "data-needs": "operate", text: "Discard", "aria-label": `Discard ${letter.id}`, onclick: once(() => discard(letter)) }))));
  element.tick = () => setText(when, ago(letter.at));
  element.tick();
  return element;
}
