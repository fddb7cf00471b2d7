// All events, one line for each event. An open line shows the complete event from the log.

import { h, setText } from "./dom.js";
import { number, pretty, seconds } from "./format.js";
import { get } from "./live.js";

const CALLS = new Set(["tool_called", "model_called"]);
const SHOWN = {
  "": ["Everything", () => true],
  problems: ["Problems", (line) => line.tone === "bad" || line.tone === "warn"],
  calls: ["Model and tool calls", (line) => CALLS.has(line.kind)],
  decisions: ["Without calls", (line) => !CALLS.has(line.kind)],
};

export function eventList(forget) {
  const list = h("ol", { class: "events" });
  const count = h("span", { class: "muted number" });
  const which = h("select", { "aria-label": "Which events" }, Object.entries(SHOWN).map(([value, [text]]) => h("option", { value, text })));
  const chip = h("button", { type: "button", class: "chip", hidden: true, onclick: forget });
  const tools = h("div", { class: "tools" }, chip, which, count);
  let lines = [];
  let start = null;
  let task = "";

  which.addEventListener("change", redraw);

  const fits = (line) => (!task || line.task === task) && SHOWN[which.value][1](line);

  function add(more) {
    start ??= Date.parse(more[0].at);
    lines.push(...more);
    list.append(...more.filter(fits).map((line) => lineElement(line, start)));
    counted();
  }

  function redraw() {
    list.replaceChildren(...lines.filter(fits).map((line) => lineElement(line, start)));
    counted();
  }

  function counted() {
    const shown = list.childElementCount;
    setText(count, shown === lines.length ? `${number(shown)} events` : `${number(shown)} of ${number(lines.length)}`);
  }

  return {
    element: list,
    tools,
    add,
    reset: () => { lines = []; start = null; list.replaceChildren(); },
    only: (chosen) => {
      task = chosen;
      chip.hidden = !chosen;
      setText(chip, `Task ${chosen} ×`);
      chip.setAttribute("aria-label", `Show all tasks again, not ${chosen} only`);
      redraw();
    },
  };
}

function lineElement(line, start) {
  const body = h("pre", { tabindex: "0", "aria-label": "The complete event" });
  const offset = (Date.parse(line.at) - start) / 1000;
  const element = h("details", { class: `event ${line.tone}` },
    h("summary", {},
      h("span", { class: "number when", text: `+${seconds(Math.max(0, offset))}`, title: line.at }),
      h("span", { class: "mark", "aria-hidden": "true" }),
      h("b", { class: "who", text: line.actor }),
      h("span", { class: "what", text: line.detail })),
    body);
  element.addEventListener("toggle", async () => {
    if (!element.open || body.textContent) return;
    body.textContent = "Loading";
    const whole = await get(`/api/events/${line.stream}/${line.sequence}`);
    if (!whole) { body.textContent = ""; element.open = false; return; }
    const entries = whole.body && whole.body.entries;
    body.textContent = pretty(entries ? entries[line.part] : whole.body);
  });
  return h("li", {}, element);
}
