// What nobody could process: why, what it was, and the two ways out of here.

import { arrange, empty, h, note, setText } from "./dom.js";
import { ago, clock, number, pretty } from "./format.js";
import { follow, get, post } from "./live.js";

const CAUSES = {
  handler_error: "The agent failed",
  invalid_input: "Input did not fit",
  invalid_output: "Output did not fit",
  insufficient: "Output would not do",
  oversize: "Too large",
  timeout: "Took too long",
  worker_crashed: "The worker crashed",
  no_worker: "No worker took it",
  refused: "Refused",
  undecodable: "Unreadable",
};

export function lettersPage(main) {
  document.title = "Dead letters · Pointsman";
  const search = h("input", { type: "search", "aria-label": "Search cause, origin, workflow", placeholder: "Search cause, origin, workflow  ( / )" });
  const replayAll = h("button", { type: "button", onclick: () => all("Replay", replay) });
  const discardAll = h("button", { type: "button", class: "danger", onclick: () => all("Discard", discard) });
  const list = h("ol", { class: "letters", "aria-label": "Dead letters, newest first" });
  const nothing = h("div", {});
  const tools = h("div", { class: "filters" }, search, replayAll, discardAll);
  const more = h("p", { class: "muted" });
  main.append(h("div", { class: "head-line" }, h("h1", { text: "Dead letters" }), h("p", { class: "muted", text: "Events that nobody could process. Nothing here is lost: replay it once the cause is mended." })), tools, more, list, nothing);
  const elements = new Map();
  let letters = [];

  search.addEventListener("input", draw);
  const fitting = () => letters.filter((one) => !search.value || [one.id, one.origin, one.workflow, one.kind, one.message].join(" ").toLowerCase().includes(search.value.toLowerCase()));

  async function all(word, act) {
    const chosen = fitting();
    if (!(await agree(`${word} ${number(chosen.length)} dead letter${chosen.length === 1 ? "" : "s"}?`, word, word === "Discard"))) return;
    let done = 0;
    for (const one of chosen) done += await act(one, true);
    note(`${word === "Replay" ? "Replayed" : "Discarded"} ${number(done)} of ${number(chosen.length)}.`, done === chosen.length ? "plain" : "bad");
  }

  async function replay(letter, quiet = false, asNew = false) {
    const done = await post(`/api/dead-letters/${letter.id}/replay`, { as_new: asNew });
    if (done.ok) {
      if (!quiet) note(`Replayed: ${done.action === "request" ? "sent again as" : "goes on in"} ${done.workflow}.`);
      return 1;
    }
    if (done.status === 409 && !quiet && !asNew && letter.workflow) {
      if (await agree("Its workflow has ended, so the task cannot go on. Send the whole request again, as a new workflow?", "Send again")) return replay(letter, quiet, true);
    } else if (!quiet) note(done.error, "bad");
    return 0;
  }

  async function discard(letter, quiet = false) {
    if (!quiet && !(await agree("Discard this dead letter for good?", "Discard", true))) return 0;
    const done = await post(`/api/dead-letters/${letter.id}/discard`);
    if (!done.ok && !quiet) note(done.error, "bad");
    return done.ok ? 1 : 0;
  }

  function draw() {
    const shown = fitting();
    for (const id of elements.keys()) if (!letters.some((one) => one.id === id)) elements.delete(id);
    arrange(list, shown.map((one) => {
      if (!elements.has(one.id)) elements.set(one.id, letterElement(one, replay, discard));
      return elements.get(one.id);
    }));
    tools.hidden = !letters.length;
    setText(more, letters.length >= 500 ? "These are the oldest 500; the others come when some of them are dealt with." : "");
    replayAll.hidden = discardAll.hidden = shown.length < 2;
    setText(replayAll, `Replay all ${number(shown.length)}`);
    setText(discardAll, `Discard all ${number(shown.length)}`);
    nothing.replaceChildren(...(shown.length ? [] : [letters.length ? empty("No dead letter fits.") : empty("No dead letters.", "What cannot be processed comes here with its cause, and its workflow still ends.")]));
  }

  follow("/api/live/dead-letters", { letters: (got) => { letters = got.letters; draw(); } });
}

function letterElement(letter, replay, discard) {
  const body = h("pre", { tabindex: "0", "aria-label": "The event whole" });
  const facts = h("details", { class: "letter-body" }, h("summary", { text: "Show the event" }), body);
  facts.addEventListener("toggle", async () => {
    if (!facts.open || body.textContent) return;
    const whole = await get(`/api/dead-letters/${letter.id}`);
    body.textContent = whole ? pretty(whole) : "";
  });
  const busy = (act) => async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    await act(letter);
    button.disabled = false;
  };
  return h("li", { class: "letter" },
    h("div", { class: "letter-head" },
      h("span", { class: "status bad", title: letter.kind, text: CAUSES[letter.kind] || letter.kind }),
      h("b", { text: letter.task ? `${letter.origin} · ${letter.task}` : letter.origin }),
      h("time", { class: "muted number", datetime: letter.at, title: clock(letter.at), text: ago(letter.at) }),
      h("span", { class: "muted number", text: `${letter.attempts} ${letter.attempts === 1 ? "try" : "tries"}` }),
      letter.workflow ? h("a", { href: `/workflows/${letter.workflow}`, class: "number", text: letter.workflow }) : ""),
    h("p", { class: "cause", text: letter.message }),
    h("div", { class: "letter-foot" }, facts,
      h("p", { class: "buttons" },
        h("button", { type: "button", text: "Replay", "aria-label": `Replay ${letter.id}`, onclick: busy(replay) }),
        h("button", { type: "button", class: "danger", text: "Discard", "aria-label": `Discard ${letter.id}`, onclick: busy(discard) }))));
}

function agree(question, word, danger = false) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "agree" },
      h("form", { method: "dialog" }, h("h2", { id: "agree", text: question }),
        h("p", { class: "buttons" }, h("button", { value: "", text: "Keep it" }), h("button", { value: "yes", class: danger ? "danger" : "primary", text: word }))));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
