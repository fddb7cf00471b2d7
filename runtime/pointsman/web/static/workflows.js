// The list of workflows, newest first, with live changes. The server filters the list.

import { courseOf } from "./course.js";
import { arrange, command, empty, h, note, once, setText } from "./dom.js";
import { ago, clock, compact, money, number, seconds, span, tone, word } from "./format.js";
import { follow, post, teams } from "./live.js";
import { pager } from "./pager.js";

const TIMES = [["", "Any time"], ["15", "Last 15 minutes"], ["60", "Last hour"], ["1440", "Last day"], ["10080", "Last week"]];
const STATES = ["waiting for admission", "running", "waiting for an answer", "completed", "partial", "failed", "cancelled"];

export function workflowsPage(main) {
  document.title = "Workflows · Pointsman";
  const asked = new URLSearchParams(location.search);
  const rows = new Map();
  let waiting = []; // requests that no supervisor has admitted yet; they are before all other rows
  let offset = Number(asked.get("offset") || 0);
  let size = 100;

  const search = h("input", { type: "search", "aria-label": "Search request, id or agent", placeholder: "Search request, id or agent  ( / )", value: asked.get("text") || "" });
  const team = choice("Team", [["", "All teams"]], asked.get("team"));
  const status = choice("Status", [["", "Any status"], ...STATES.map((name) => [name, word(name)])], asked.get("status"));
  const time = choice("Started", TIMES, asked.get("minutes"));
  const totals = h("dl", { class: "totals" });
  const course = courseOf();
  const head = h("div", { class: "row head workflow-row", "aria-hidden": "true" },
    ["Status", "Request", "Team", "Tasks", "Started", "Took", "Tokens", "Cost"].map((name) => h("span", { text: name })));
  const list = h("ol", { class: "rows workflows", "aria-label": "Workflows" });
  const nothing = h("div", {});
  const pages = pager(ask);
  main.append(
    h("h1", { class: "unseen", text: "Workflows" }),
    h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, search, team, status, time),
    h("div", { class: "overview" }, totals, course.element),
    head, list, nothing, pages.element);

  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(ask, 200, 0); });
  for (const one of [team, status, time]) one.addEventListener("change", () => ask(0));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("li");
    if (!step || !row) return;
    const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
    if (next) { event.preventDefault(); next.querySelector("a").focus(); }
  });

  function ask(from = offset) {
    offset = from;
    const query = new URLSearchParams();
    for (const [name, value] of [["text", search.value.trim()], ["team", team.value], ["status", status.value], ["minutes", time.value], ["offset", offset || ""]]) {
      if (value) query.set(name, value);
    }
    const shown = query.size ? `?${query}` : "";
    history.replaceState({}, "", `/${shown}`);
    follow(`/api/live/workflows${shown}`, { page: whole, rows: some });
  }

  function whole(page) {
    size = page.size;
    rows.clear();
    for (const row of page.rows) rows.set(row.id, row);
    waiting = page.waiting;
    offerTeams(page.live.teams);
    draw(page.totals);
  }

  function some({ rows: changed, totals: sums, waiting: others = waiting }) {
    waiting = others;
    for (const row of changed) {
      if (!row.fits) rows.delete(row.id);
      else if (rows.has(row.id) || !offset) rows.set(row.id, row);
    }
    const newest = [...rows.values()].sort((one, other) => other.began - one.began).slice(0, size);
    rows.clear();
    for (const row of newest) rows.set(row.id, row);
    draw(sums);
  }

  function offerTeams(names) {
    const before = team.value || asked.get("team") || "";
    const all = [...new Set([...names, before])].filter(Boolean).sort();
    if (String(all) === team.dataset.names) return;
    team.dataset.names = String(all);
    team.replaceChildren(h("option", { value: "", text: "All teams" }), ...all.map((name) => h("option", { value: name, text: name })));
    team.value = before;
  }

  const elements = new Map();
  function draw(sums) {
    const shown = [...(offset ? [] : waiting), ...rows.values()];
    const ids = new Set(shown.map((row) => row.id));
    for (const id of elements.keys()) if (!ids.has(id)) elements.delete(id);
    arrange(list, shown.map((row) => {
      if (!elements.has(row.id)) elements.set(row.id, rowElement(row));
      const element = elements.get(row.id);
      element.update(row);
      return element;
    }));
    arrange(totals, [
      figure("Workflows", number(sums.count)), figure("Running", number(sums.running), sums.running && "running"),
      ...(sums.waiting ? [figure("Not admitted", number(sums.waiting), "warn")] : []),
      figure("Failed or partial", number(sums.failed), sums.failed && "bad"),
      figure("Median duration", seconds(sums.median_seconds) || "–"), figure("Slowest 5 %", seconds(sums.p95_seconds) || "–"),
      figure("Tokens", compact(sums.tokens)), figure("Cost", money(sums.cost) || "$0.00"),
    ]);
    course.show(sums.activity);
    head.hidden = !shown.length;
    const filtered = search.value || team.value || status.value || time.value;
    nothing.replaceChildren(...(shown.length ? [] : [filtered
      ? empty("No workflow matches.", "Remove a filter, or search for something else.")
      : empty("No workflows yet.", h("span", {}, "Ask a team with ", h("b", { text: "New request" }), ", or from a terminal:"), command(`pointsman submit ${[...teams][0] || "TEAM"} "..."`))]));
    pages.show(offset, size, sums.count);
  }

  ask();
  const clockTick = setInterval(() => { for (const element of elements.values()) element.tick(); }, 1000);
  return () => { clearInterval(clockTick); clearTimeout(typing); };
}

function choice(label, options, value) {
  const select = h("select", { "aria-label": label }, options.map(([of, text]) => h("option", { value: of, text })));
  if (value) {
    if (!options.some(([of]) => of === value)) select.append(h("option", { value, text: value }));
    select.value = value;
  }
  return select;
}

function figure(name, value, toneName) {
  return h("div", {}, h("dt", { text: name }), h("dd", { class: `number ${toneName || ""}`, text: value }));
}

function rowElement(first) {
  let row = first;
  const state = h("span", { class: "status" });
  const link = h("a", { href: `/workflows/${row.id}`, class: "request" });
  const bar = h("span", { class: "bar" }, h("i"), h("b"));
  const count = h("span", { class: "number" });
  const stopIt = h("button", { type: "button", "data-needs": "operate", text: "Cancel", onclick: once(cancel) });
  const tasks = h("span", { class: "tasks" }, bar, count, stopIt);
  const started = h("time", { class: "number", datetime: row.started_at, title: clock(row.started_at) });
  const took = h("span", { class: "number" });
  const tokens = h("span", { class: "number" });
  const cost = h("span", { class: "number" });
  const element = h("li", { class: "row workflow-row" }, state, link, h("span", { class: "team", text: row.team }), tasks, started, took, tokens, cost);
  element.tick = () => {
    setText(started, ago(row.started_at));
    setText(took, seconds(span(row.started_at, row.ended_at)));
  };
  async function cancel() {
    const done = await post(`/api/workflows/${row.id}/cancel`, { reason: "cancelled in the dashboard" });
    note(done.ok ? "The cancellation was requested." : done.error, done.ok ? "plain" : "bad");
  }
  let drawn = null;
  element.update = (now) => {
    if (now === drawn) return; // skip unchanged rows, because usually only few rows change
    drawn = row = now;
    stopIt.hidden = row.status !== "waiting for admission";
    state.className = `status ${tone(row.status)}`;
    setText(state, word(row.status));
    state.title = row.reason;
    const why = row.ended_at || !row.reason ? "" : `: ${row.reason}`;
    setText(link, row.input.replace(/\s+/g, " ") + why);
    setText(count, row.total ? `${row.done}/${row.total}` : "");
    bar.hidden = !row.total;
    bar.className = `bar ${row.status === "cancelled" ? "ended" : ""}`;
    bar.firstChild.style.width = `${row.total ? (100 * row.done) / row.total : 0}%`;
    bar.lastChild.style.width = `${row.total ? (100 * row.failed) / row.total : 0}%`;
    setText(tokens, row.tokens ? compact(row.tokens) : "");
    setText(cost, money(row.cost));
    element.tick();
  };
  return element;
}

