// Webhooks: the endpoints with commands, and the deliveries with states.

import { arrange, command, copyable, empty, h, note, once, setText } from "./dom.js";
import { agree } from "./agree.js";
import { ago, clock, number } from "./format.js";
import { follow, post, teams } from "./live.js";
import { pager } from "./pager.js";

const EVENTS = { "workflow.ended": "Workflow ended", "question.asked": "Question asked", "dead_letter.stored": "Dead letter stored" };
const STATUS = { delivered: ["good", "Delivered"], retrying: ["warn", "Retrying"], failed: ["bad", "Failed"], disabled: ["muted", "Disabled"] };

export function webhooksPage(main) {
  document.title = "Webhooks · Pointsman";
  const asked = new URLSearchParams(location.search);
  const warning = h("p", { class: "problem main-problem", role: "status", hidden: true });
  const secret = h("section", { class: "panel secret", "aria-labelledby": "secret", hidden: true });
  const endpoints = h("ol", { class: "letters", "aria-label": "Endpoints" });
  const nothing = h("div", {});
  const search = h("input", { type: "search", "aria-label": "Search event, workflow, error", placeholder: "Search event, workflow, error  ( / )", value: asked.get("text") || "" });
  const status = h("select", { "aria-label": "Status" }, h("option", { value: "", text: "Any status" }), Object.entries(STATUS).map(([value, [, text]]) => h("option", { value, text })));
  const endpoint = h("select", { "aria-label": "Endpoint" }, h("option", { value: "", text: "All endpoints" }));
  const list = h("ol", { class: "letters", "aria-label": "Deliveries, newest change first" });
  const none = h("div", {});
  const pages = pager(ask);
  const form = endpointForm(showSecret);
  const below = h("section", { "aria-labelledby": "deliveries" }, h("h2", { id: "deliveries", class: "above-table", text: "Deliveries" }), h("div", { class: "filters" }, search, status, endpoint), list, none, pages.element);
  main.append(
    h("div", { class: "head-line" }, h("h1", { text: "Webhooks" }), h("p", { class: "muted", text: "Endpoints that receive outcomes, questions and dead letters over HTTP." })),
    warning, form.element, secret, endpoints, nothing, below);
  status.value = asked.get("status") || "";
  let chosen = asked.get("endpoint") || ""; // the option of this value arrives with the first event
  const elements = new Map();
  const rows = new Map();
  let offset = Number(asked.get("offset") || 0);

  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(ask, 200, 0); });
  status.addEventListener("change", () => ask(0));
  endpoint.addEventListener("change", () => { chosen = endpoint.value; ask(0); });

  function ask(from = offset) {
    offset = from;
    const query = new URLSearchParams();
    for (const [name, value] of [["text", search.value.trim()], ["status", status.value], ["endpoint", chosen], ["offset", offset || ""]]) if (value) query.set(name, value);
    const words = query.size ? `?${query}` : "";
    history.replaceState({}, "", `/webhooks${words}`);
    follow(`/api/live/webhooks${words}`, { webhooks: draw });
  }

  // The secret of an endpoint is shown once, until the user closes it.
  function showSecret(id, text) {
    const close = h("button", { type: "button", text: "Close", onclick: () => { secret.hidden = true; secret.replaceChildren(); form.focus(); } });
    secret.replaceChildren(h("h2", { id: "secret", text: `Secret of ${id}` }), h("p", { text: "Give this secret to the receiver. The secret is shown only once." }), h("p", {}, copyable(text, "the secret")), h("p", { class: "buttons" }, close));
    secret.hidden = false;
    secret.querySelector("button.copy").focus();
  }

  function draw(got) {
    form.offer();
    warning.hidden = !got.denied && (got.running || !got.endpoints.length);
    setText(warning, got.denied || `No webhook service runs${got.waiting ? `, and ${number(got.waiting)} ${got.waiting === 1 ? "delivery waits" : "deliveries wait"}` : ""}. Start one: pointsman webhooks run`);
    sync(elements, endpoints, got.endpoints, (one) => one.id, (one) => endpointElement(one, showSecret));
    options(got.endpoints);
    nothing.replaceChildren(...(got.endpoints.length || got.denied ? [] : [empty("No endpoints yet.", "Create one above, or in a terminal:", command("pointsman webhooks create URL"))]));
    below.hidden = !got.endpoints.length && !got.count;
    sync(rows, list, got.deliveries, (one) => `${one.endpoint} ${one.event}`, deliveryElement);
    none.replaceChildren(...(got.count ? [] : [empty(search.value || status.value || chosen ? "No delivery matches." : "No deliveries yet.", "A delivery appears here after its first attempt, and stays for seven days.")]));
    pages.show(offset, got.size, got.count);
  }

  function options(found) {
    const names = ["", ...found.map((one) => one.id)];
    if (names.join(" ") === [...endpoint.options].map((one) => one.value).join(" ") && endpoint.value === chosen) return;
    endpoint.replaceChildren(h("option", { value: "", text: "All endpoints" }), ...found.map((one) => h("option", { value: one.id, text: `${one.id}, ${one.url}`.slice(0, 60) })));
    endpoint.value = chosen;
  }

  ask();
  const tick = setInterval(() => { for (const row of rows.values()) row.tick(); }, 1000);
  return () => { clearTimeout(typing); clearInterval(tick); };
}

// Return elements for the items, in order. Elements with the same key are reused.
function sync(known, parent, items, key, make) {
  const shown = new Set(items.map(key));
  for (const one of known.keys()) if (!shown.has(one)) known.delete(one);
  arrange(parent, items.map((one) => {
    if (!known.has(key(one))) known.set(key(one), make(one));
    known.get(key(one)).update(one);
    return known.get(key(one));
  }));
}

function endpointForm(made) {
  const known = h("datalist", { id: "webhook-teams" });
  const url = h("input", { type: "url", required: true, autocomplete: "off", maxlength: "2000", placeholder: "https://HOST/PATH" });
  const team = h("input", { list: "webhook-teams", autocomplete: "off", pattern: "[A-Za-z0-9_\\-]{1,64}(\\s*,\\s*[A-Za-z0-9_\\-]{1,64})*" });
  const boxes = Object.entries(EVENTS).map(([value, text]) => [h("input", { type: "checkbox", checked: true, value }), text]);
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const create = h("button", { class: "primary", text: "Create" });
  const fail = (said) => { setText(problem, said); problem.hidden = !said; };
  const form = h("form", { class: "batch-form", "aria-label": "New endpoint", onsubmit: send },
    h("label", { class: "wide" }, h("span", { text: "URL" }), url),
    h("label", {}, h("span", { text: "Teams" }), team, h("span", { class: "hint", text: "Separated by commas. Empty: all teams" })), known,
    h("fieldset", { class: "fields" }, h("legend", { text: "Events" }), boxes.map(([box, text]) => h("label", { class: "check" }, box, text))),
    h("p", { class: "buttons" }, create), problem);
  const summary = h("summary", { text: "New endpoint" });
  const element = h("details", { class: "panel new-schedule", "data-needs": "operate" }, summary, form);

  async function send(event) {
    event.preventDefault();
    const events = boxes.filter(([box]) => box.checked).map(([box]) => box.value);
    if (create.ariaDisabled) return;
    if (!events.length) { fail("Choose an event."); return; }
    create.ariaDisabled = "true"; // `disabled` would remove the focus
    fail("");
    const names = team.value.split(",").map((one) => one.trim()).filter(Boolean);
    const done = await post("/api/webhooks", { url: url.value.trim(), events, ...(names.length ? { teams: names } : {}) });
    create.ariaDisabled = null;
    if (!done.ok) { fail(done.error); return; }
    form.reset();
    element.open = false;
    made(done.id, done.secret);
  }

  return {
    element,
    focus: () => summary.focus(),
    offer: () => { if (known.childElementCount !== teams.size) known.replaceChildren(...[...teams].sort().map((one) => h("option", { value: one }))); },
  };
}

function endpointElement(first, showSecret) {
  const state = h("span", { class: "status" });
  const why = h("p", { class: "cause bad" });
  const wants = h("p", { class: "muted" });
  const counts = h("p", { class: "number" });
  const button = (text, act, more = {}) => h("button", { type: "button", "data-needs": "operate", text, "aria-label": `${text} ${first.id}`, onclick: once(act), ...more });
  const enable = button("Enable", () => act("enable"));
  const disable = button("Disable", () => act("disable"));
  const rotate = button("New secret", () => act("rotate"));
  const again = button("Send failed again", resend);
  const remove = button("Delete", () => act("delete"), { class: "danger" });
  const element = h("li", { class: "letter", tabindex: "-1" },
    h("div", { class: "letter-head" }, state, h("b", { class: "url", text: first.url }), h("span", { class: "muted", text: first.caller ? `of ${first.caller}` : "" }), h("code", { text: first.id })),
    why, wants, h("div", { class: "letter-foot" }, counts, h("p", { class: "buttons" }, again, rotate, enable, disable, remove)));

  async function act(action) {
    if (action === "delete" && !(await agree(`Delete the endpoint ${first.id} and its secrets?`, "Delete", true))) return;
    if (action === "rotate" && !(await agree(`Make a new secret for ${first.id}? For 24 hours, deliveries are also signed with the present secret.`, "New secret"))) return;
    const done = await post(`/api/webhooks/${first.id}/${action}`);
    if (!done.ok) note(done.error, "bad");
    else if (done.secret) showSecret(first.id, done.secret);
  }

  async function resend() {
    const done = await post(`/api/webhooks/${first.id}/resend`, { status: "failed" });
    note(done.ok ? `Deliveries that are sent again: ${number(done.resent)}.` : done.error, done.ok ? "plain" : "bad");
  }

  element.update = (now) => {
    const enabled = !now.disabled_at;
    state.className = `status ${enabled ? "good" : "bad"}`;
    setText(state, enabled ? "Enabled" : "Disabled");
    why.hidden = enabled;
    setText(why, enabled ? "" : `Since ${clock(now.disabled_at)}: ${now.disabled_reason}`);
    const all = now.events.length === Object.keys(EVENTS).length;
    setText(wants, `${all ? "All events" : now.events.map((one) => EVENTS[one]).join(", ")} of ${now.teams ? now.teams.join(", ") : "all teams"}, since ${clock(now.created_at)}`);
    setText(counts, Object.entries(STATUS).filter(([name]) => now.counts[name]).map(([name, [, text]]) => `${number(now.counts[name])} ${text.toLowerCase()}`).join(" · ") || "No deliveries");
    again.hidden = !now.counts.failed || !enabled;
    enable.hidden = enabled;
    disable.hidden = !enabled;
  };
  return element;
}

function deliveryElement(first) {
  const state = h("span", { class: "status" });
  const when = h("time", { class: "muted number" });
  const tries = h("span", { class: "muted number" });
  const problem = h("p", { class: "cause" });
  const next = h("p", { class: "muted number" });
  const send = h("button", { type: "button", "data-needs": "operate", text: "Send again", "aria-label": `Send ${first.event} again to ${first.endpoint}`, onclick: once(resend) });
  const element = h("li", { class: "letter delivery", tabindex: "-1" },
    h("div", { class: "letter-head" }, state, h("b", { text: EVENTS[first.type] || first.type }), when, tries,
      first.workflow_id ? h("a", { href: `/workflows/${first.workflow_id}`, class: "number", text: first.workflow_id }) : ""),
    problem, next,
    h("div", { class: "letter-foot" }, h("p", { class: "muted number ids-of" }, h("span", { text: first.event }), " to ", h("span", { text: first.endpoint })), h("p", { class: "buttons" }, send)));
  let view = first;

  async function resend() {
    const done = await post(`/api/webhooks/${first.endpoint}/resend`, { event: first.event });
    note(done.ok ? "The event is sent again." : done.error, done.ok ? "plain" : "bad");
  }

  element.update = (now) => {
    view = now;
    const [colour, text] = STATUS[now.status] || ["muted", now.status];
    state.className = `status ${colour}`;
    setText(state, text);
    when.dateTime = now.at;
    when.title = clock(now.at);
    setText(tries, `${now.attempts} ${now.attempts === 1 ? "attempt" : "attempts"}${now.code && !now.error ? `, status ${now.code}` : ""}`);
    problem.hidden = !now.error;
    setText(problem, now.error);
    next.hidden = !now.next_at;
    setText(next, now.next_at ? `Next attempt ${clock(now.next_at)}` : "");
    element.tick();
  };
  element.tick = () => setText(when, ago(view.at));
  return element;
}
