// Batches: a form to upload a file of requests, and the progress, the problems and the results of each batch.

import { arrange, empty, h, note, once, setText } from "./dom.js";
import { ago, clock, money, number, seconds, span } from "./format.js";
import { follow, post, teams } from "./live.js";
import { send } from "./files.js";

const STATUS = {
  running: ["running", "Running"], paused: ["muted", "Paused"], cancelling: ["muted", "Cancelling"],
  completed: ["good", "Ended"], cancelled: ["muted", "Cancelled"], failed: ["bad", "Failed"],
};

export function batchesPage(main) {
  document.title = "Batches · Pointsman";
  const known = h("datalist", { id: "batch-teams" });
  const team = h("input", { id: "batch-team", list: "batch-teams", required: true, autocomplete: "off", pattern: "[A-Za-z0-9_\\-]{1,64}" });
  const file = h("input", { type: "file", required: true, accept: ".csv,.jsonl,.ndjson" });
  const map = h("input", { placeholder: "question, or id=customer, text=question" });
  const concurrency = h("input", { type: "number", min: "1", max: "100", value: "10", required: true });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const start = h("button", { class: "primary", text: "Start" });
  const form = h("form", { class: "panel batch-form", "data-needs": "operate", "aria-label": "New batch", onsubmit: begin },
    field("Team", team), known, field("File", file, "CSV with a header, or JSON Lines"), field("Columns", map, "Empty: all columns, or the only one"),
    field("At a time", concurrency), h("p", { class: "buttons" }, start), problem);
  const list = h("ol", { class: "letters", "aria-label": "Batches, the newest first" });
  const nothing = h("div", {});
  main.append(
    h("div", { class: "head-line" }, h("h1", { text: "Batches" }), h("p", { class: "muted", text: "Each row of a file becomes a request. A batch continues without this page. Upload the same file again, and no row is done twice." })),
    form, list, nothing);
  const elements = new Map();

  async function begin(event) {
    event.preventDefault();
    if (start.ariaDisabled) return;
    start.ariaDisabled = "true"; // `disabled` would remove the focus
    setText(start, "Uploading");
    problem.hidden = true;
    const query = new URLSearchParams({ team: team.value.trim(), name: file.files[0].name, concurrency: concurrency.value });
    for (const column of map.value.split(",").filter((one) => one.trim())) query.append("map", column.trim());
    const done = await send(`/api/batches?${query}`, file.files[0]);
    start.ariaDisabled = null;
    setText(start, "Start");
    problem.hidden = done.ok;
    if (!done.ok) { setText(problem, done.error); return; }
    file.value = "";
    note(`${done.content.name} has ${number(done.content.rows)} ${done.content.rows === 1 ? "row" : "rows"}. The batch runs.`);
  }

  function draw({ batches, live }) {
    if (!team.value && live.teams.length === 1) team.value = live.teams[0];
    known.replaceChildren(...[...teams].sort().map((name) => h("option", { value: name })));
    for (const id of elements.keys()) if (!batches.some((one) => one.id === id)) elements.delete(id);
    arrange(list, batches.map((one) => {
      if (!elements.has(one.id)) elements.set(one.id, batchElement(one.id));
      elements.get(one.id).update(one);
      return elements.get(one.id);
    }));
    nothing.replaceChildren(...(batches.length ? [] : [empty("No batches.", "Batches of the command pointsman batch are not listed. Only their workflows are listed.")]));
  }

  follow("/api/live/batches", { batches: draw });
  const tick = setInterval(() => { for (const element of elements.values()) element.tick(); }, 1000);
  return () => clearInterval(tick);
}

function field(name, input, hint = "") {
  return h("label", {}, h("span", { text: name }), input, hint ? h("span", { class: "hint", text: hint }) : "");
}

function batchElement(id) {
  let batch = null;
  const state = h("span", { class: "status" });
  const name = h("b", {});
  const about = h("span", { class: "muted" });
  const when = h("time", { class: "muted number" });
  const bar = h("progress", { "aria-label": "Rows that have ended" });
  const counts = h("p", { class: "number" });
  const error = h("p", { class: "problem", hidden: true });
  const rows = h("ul", { class: "row-problems" });
  const problems = h("details", { class: "letter-body", hidden: true }, h("summary", {}), rows);
  const take = h("a", { class: "button", href: `/api/batches/${id}/results`, download: "", text: "Results" });
  const button = (text, action, tone = "") => h("button", { type: "button", class: tone, "data-needs": "operate", text, onclick: once(() => act(action)) });
  const pause = button("Pause", "pause");
  const resume = button("Resume", "resume");
  const cancel = button("Cancel", "cancel", "danger");
  const element = h("li", { class: "letter batch", tabindex: "-1" },
    h("div", { class: "letter-head" }, state, name, about, when), bar, counts, error,
    h("div", { class: "letter-foot" }, problems, h("p", { class: "buttons" }, take, pause, resume, cancel)));

  async function act(what) {
    const done = await post(`/api/batches/${id}/${what}`);
    if (!done.ok) note(done.error, "bad");
    else if (what === "pause") note("No further row is sent. Running workflows continue.");
  }

  element.tick = () => {
    setText(when, ago(batch.started_at));
    when.title = clock(batch.started_at);
  };
  element.update = (next) => {
    batch = next;
    const [tone, word] = STATUS[batch.status];
    state.className = `status ${tone}`;
    setText(state, word);
    setText(name, batch.name);
    setText(about, `to ${batch.team}, by ${batch.user}, ${number(batch.concurrency)} at a time`);
    [bar.max, bar.value] = [batch.rows, batch.done];
    const took = seconds(span(batch.started_at, batch.ended_at));
    setText(counts, [`${number(batch.done)} of ${number(batch.rows)} rows`, batch.problem_count ? `${number(batch.problem_count)} not completed` : "",
      batch.tokens ? `${number(batch.tokens)} tokens` : "", money(batch.cost), batch.ended_at ? took : ""].filter(Boolean).join(" · "));
    error.hidden = !batch.error;
    setText(error, batch.error);
    problems.hidden = !batch.problems.length;
    setText(problems.firstChild, batch.problems.length < batch.problem_count
      ? `The last ${number(batch.problems.length)} of ${number(batch.problem_count)} rows that did not complete` : `Rows that did not complete`);
    arrange(rows, batch.problems.map((one) => rows.querySelector(`[data-row="${one.row}"]`) || h("li", { "data-row": one.row },
      one.status === "not_sent" ? h("b", { text: `Row ${number(one.row)}` }) : h("a", { href: `/workflows/${one.workflow_id}`, text: `Row ${number(one.row)}` }),
      ` ${one.status.replaceAll("_", " ")}: ${one.reason}`)));
    pause.hidden = batch.status !== "running";
    resume.hidden = batch.status !== "paused";
    cancel.hidden = batch.status !== "running" && batch.status !== "paused";
    element.tick();
  };
  return element;
}
