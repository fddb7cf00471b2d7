// Schedules: a form to create a schedule, and the times, policies, runs and commands of each schedule.

import { arrange, command, empty, h, note, once, setText } from "./dom.js";
import { agree } from "./agree.js";
import { attachments } from "./attachments.js";
import { ago, clock, number, tone, word } from "./format.js";
import { follow, post, teams } from "./live.js";
import { pager } from "./pager.js";
import { newId } from "./request.js";

const STATUS = { active: ["good", "Active"], paused: ["warn", "Paused"], ended: ["muted", "Ended"] };
const OVERLAP = { skip: "skip a run while another runs", queue: "let a run wait while another runs", allow: "let runs overlap" };
const MISSED = { skip: "skip missed times", once: "make up for missed times once" };

export function schedulesPage(main) {
  document.title = "Schedules · Pointsman";
  const asked = new URLSearchParams(location.search);
  const search = h("input", { type: "search", "aria-label": "Search name, team, caller, request", placeholder: "Search name, team, caller, request  ( / )", value: asked.get("text") || "" });
  const list = h("ol", { class: "letters", "aria-label": "Schedules" });
  const nothing = h("div", {});
  const pages = pager(ask);
  const form = scheduleForm();
  main.append(
    h("div", { class: "head-line" }, h("h1", { text: "Schedules" }), h("p", { class: "muted", text: "Requests that supervisors send at the times of a cron expression, or once." })),
    form.element, h("div", { class: "filters" }, search), list, nothing, pages.element);
  const elements = new Map();
  let offset = Number(asked.get("offset") || 0);

  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(ask, 200, 0); });

  function ask(from = offset) {
    offset = from;
    const query = new URLSearchParams();
    if (search.value.trim()) query.set("text", search.value.trim());
    if (offset) query.set("offset", offset);
    const words = query.size ? `?${query}` : "";
    history.replaceState({}, "", `/schedules${words}`);
    follow(`/api/live/schedules${words}`, { schedules: draw });
  }

  function draw(got) {
    form.offer(got.live.teams);
    const key = (one) => `${one.team}/${one.caller}/${one.name}`;
    const shown = new Set(got.schedules.map(key));
    for (const one of elements.keys()) if (!shown.has(one)) elements.delete(one);
    arrange(list, got.schedules.map((one) => {
      if (!elements.has(key(one))) elements.set(key(one), scheduleElement(key(one), one));
      elements.get(key(one)).update(one);
      return elements.get(key(one));
    }));
    nothing.replaceChildren(...(got.count ? [] : [search.value
      ? empty("No schedule matches.", "Search for something else.")
      : empty("No schedules yet.", "Create one above, or in a terminal:", command(`pointsman schedules create NAME ${[...teams][0] || "TEAM"} "..." --cron "0 9 * * 1-5"`))]));
    pages.show(offset, got.size, got.count);
  }

  ask();
  return () => clearTimeout(typing);
}

function scheduleForm() {
  let id = newId(); // the id under which files are uploaded; the schedule then gets copies of them
  const known = h("datalist", { id: "schedule-teams" });
  const token = { required: true, autocomplete: "off", pattern: "[A-Za-z0-9_\\-]{1,64}" };
  const name = h("input", { ...token, placeholder: "morning-report" });
  const team = h("input", { ...token, list: "schedule-teams" });
  const request = h("textarea", { rows: "2", required: true });
  const cron = h("input", { placeholder: "0 9 * * 1-5", autocomplete: "off" });
  const zone = h("input", { value: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC", autocomplete: "off" });
  const at = h("input", { type: "datetime-local" });
  const overlap = h("select", {}, Object.keys(OVERLAP).map((value) => h("option", { value, text: value })));
  const missed = h("select", {}, ["", "skip", "once"].map((value) => h("option", { value, text: value || "default" })));
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const create = h("button", { class: "primary", text: "Create" });
  const fail = (said) => { setText(problem, said); problem.hidden = !said; };
  const files = attachments({ to: () => ({ team: team.value.trim(), id }), fail });
  const field = (label, input, hint = "") => h("label", {}, h("span", { text: label }), input, hint ? h("span", { class: "hint", text: hint }) : "");
  const form = h("form", { class: "batch-form", "aria-label": "New schedule", onsubmit: send },
    field("Name", name), field("Team", team), known, h("label", { class: "wide" }, h("span", { text: "Request" }), request),
    h("div", { class: "attachments" }, h("p", {}, files.button, files.picker), files.list),
    field("Times", cron, "Minute, hour, day, month, day of the week"), field("Time zone", zone), field("Or once at", at, "In the time of this browser"),
    field("While a run is active", overlap), field("Missed times", missed), h("p", { class: "buttons" }, create), problem);
  const element = h("details", { class: "panel new-schedule", "data-needs": "operate" }, h("summary", { text: "New schedule" }), form);
  files.acceptDrops(form);

  async function send(event) {
    event.preventDefault();
    if (create.ariaDisabled) return;
    if (Boolean(cron.value.trim()) === Boolean(at.value)) { fail("Give either the times as a cron expression, or one time."); return; }
    create.ariaDisabled = "true"; // `disabled` would remove the focus
    fail("");
    const times = at.value ? { at: new Date(at.value).toISOString() } : { cron: cron.value.trim(), timezone: zone.value.trim() || "UTC" };
    const attached = await files.stored();
    const done = attached && await post("/api/schedules", { name: name.value.trim(), team: team.value.trim(), input: request.value.trim(), overlap: overlap.value, ...(missed.value ? { missed: missed.value } : {}), ...times, request_id: id, ...attached });
    create.ariaDisabled = null;
    if (!done) return; // a file could not be uploaded
    if (!done.ok) { fail(done.error); return; }
    note(done.state === "waiting" ? "The schedule is stored. A supervisor of the team will start the schedule." : "The schedule is created.");
    form.reset();
    files.clear();
    id = newId();
    element.open = false;
    element.firstChild.focus();
  }

  return {
    element,
    offer: (names) => {
      known.replaceChildren(...[...teams].sort().map((one) => h("option", { value: one })));
      if (!team.value && names.length === 1) team.value = names[0];
    },
  };
}

function scheduleElement(path, first) {
  const state = h("span", { class: "status" });
  const next = h("p", { class: "number" });
  const counts = h("p", { class: "muted number" });
  const rows = h("ul", { class: "runs" });
  const runs = h("details", { class: "letter-body" }, h("summary", {}), rows);
  const button = (text, action, more = {}) => h("button", { type: "button", "data-needs": "operate", text, "aria-label": `${text} ${first.name}`, onclick: once(() => act(action)), ...more });
  const [run, pause, resume, remove] = [button("Run now", "run"), button("Pause", "pause"), button("Resume", "resume"), button("Delete", "delete", { class: "danger" })];
  const times = first.cron ? `${first.cron}, ${first.timezone}` : `once, ${clock(first.at)}`;
  const element = h("li", { class: "letter", tabindex: "-1" },
    h("div", { class: "letter-head" }, state, h("b", { text: first.name }), h("span", { class: "muted", text: `${first.team}, by ${first.caller}` }), h("code", { text: times })),
    h("p", { class: "cause", text: first.request }), next, counts,
    h("div", { class: "letter-foot" }, runs, h("p", { class: "buttons" }, run, pause, resume, remove)));

  async function act(action) {
    if (action === "delete" && !(await agree(`Delete the schedule ${first.name}? Runs that have started continue.`, "Delete", true))) return;
    const done = await post(`/api/schedules/${path}/${action}`);
    if (!done.ok) note(done.error, "bad");
    else if (done.state === "waiting") note("The command is stored. A supervisor of the team will carry out the command.");
  }

  element.update = (now) => {
    const [colour, text] = STATUS[now.status] || ["muted", now.status];
    state.className = `status ${colour}`;
    setText(state, text);
    next.hidden = !now.next.length;
    setText(next, `Next: ${now.next.map(clock).join(" · ")}`);
    setText(counts, [`${number(now.started)} started`, now.skipped ? `${number(now.skipped)} skipped` : "", now.missed ? `${number(now.missed)} missed` : "",
      `${OVERLAP[now.overlap] || ""}, ${MISSED[now.missed_policy] || ""}`, now.files.length ? `files ${now.files.join(", ")}` : ""].filter(Boolean).join(" · "));
    runs.hidden = !now.runs.length;
    setText(runs.firstChild, `Last ${now.runs.length === 1 ? "run" : `${number(now.runs.length)} runs`}`);
    arrange(rows, now.runs.map((one) => {
      const row = rows.querySelector(`[data-run="${one.workflow}"]`) || h("li", { "data-run": one.workflow },
        h("span", {}), h("a", { href: `/workflows/${one.workflow}?team=${now.team}`, text: clock(one.due), title: ago(one.due) }), one.by ? h("span", { class: "muted", text: ` by ${one.by}` }) : "");
      row.firstChild.className = `status ${tone(one.status)}`;
      setText(row.firstChild, word(one.status));
      return row;
    }));
    run.hidden = now.status === "ended";
    pause.hidden = now.status !== "active";
    resume.hidden = now.status !== "paused";
  };
  return element;
}
