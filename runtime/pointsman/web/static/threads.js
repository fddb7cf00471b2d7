// The conversations, the newest change first, and the form to begin a conversation.

import { arrange, command, empty, h, setText } from "./dom.js";
import { ago, clock, number, tone, word } from "./format.js";
import { follow, teams } from "./live.js";
import { me } from "./me.js";
import { pager } from "./pager.js";
import { newId } from "./request.js";

export function threadsPage(main, _, go) {
  document.title = "Conversations · Pointsman";
  const asked = new URLSearchParams(location.search);
  const search = h("input", { type: "search", "aria-label": "Search request, team or caller", placeholder: "Search request, team or caller  ( / )", value: asked.get("text") || "" });
  const team = h("input", { id: "talk-team", list: "talk-teams", required: true, autocomplete: "off", pattern: "[A-Za-z0-9_\\-]{1,64}", "aria-label": "Team", placeholder: "Team" });
  const known = h("datalist", { id: "talk-teams" });
  const begin = h("form", { class: "begin", "data-needs": "operate", onsubmit: start }, team, known, h("button", { class: "primary", text: "New conversation" }));
  const head = h("div", { class: "row head thread-row", "aria-hidden": "true" }, ["Status", "First request", "Team", "Caller", "Turns", "Changed"].map((name) => h("span", { text: name })));
  const list = h("ol", { class: "rows threads", "aria-label": "Conversations, the newest change first" });
  const nothing = h("div", {});
  const pages = pager(ask);
  main.append(h("h1", { class: "unseen", text: "Conversations" }), h("div", { class: "filters" }, search, begin), head, list, nothing, pages.element);
  const elements = new Map();
  let offset = Number(asked.get("offset") || 0);

  async function start(event) {
    event.preventDefault();
    const user = await me;
    go(`/threads/${team.value.trim()}/${user ? user.caller : "anonymous"}/${newId()}`);
  }

  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(ask, 200, 0); });

  function ask(from = offset) {
    offset = from;
    const query = new URLSearchParams();
    if (search.value.trim()) query.set("text", search.value.trim());
    if (offset) query.set("offset", offset);
    const words = query.size ? `?${query}` : "";
    history.replaceState({}, "", `/threads${words}`);
    follow(`/api/live/threads${words}`, { threads: draw });
  }

  function draw(got) {
    if (!team.value && document.activeElement !== team && got.live.teams.length === 1) team.value = got.live.teams[0];
    known.replaceChildren(...[...teams].sort().map((name) => h("option", { value: name })));
    const key = (one) => `${one.team}/${one.caller}/${one.thread}`;
    const shown = new Set(got.threads.map(key));
    for (const one of elements.keys()) if (!shown.has(one)) elements.delete(one);
    arrange(list, got.threads.map((one) => {
      if (!elements.has(key(one))) elements.set(key(one), rowElement(key(one)));
      elements.get(key(one)).update(one);
      return elements.get(key(one));
    }));
    head.hidden = !got.count;
    nothing.replaceChildren(...(got.count ? [] : [search.value
      ? empty("No conversation matches.", "Search for something else.")
      : empty("No conversations yet.", "Choose a team above, or begin in a terminal:", command(`pointsman chat ${[...teams][0] || "TEAM"}`))]));
    pages.show(offset, got.size, got.count);
  }

  ask();
  const clockTick = setInterval(() => { for (const element of elements.values()) element.tick(); }, 1000);
  return () => { clearInterval(clockTick); clearTimeout(typing); };
}

function rowElement(path) {
  const state = h("span", { class: "status" });
  const link = h("a", { href: `/threads/${path}`, class: "request" });
  const [team, caller, turns] = [h("span", { class: "team" }), h("span", { class: "team" }), h("span", { class: "number" })];
  const changed = h("time", { class: "number" });
  const element = h("li", { class: "row thread-row" }, state, link, team, caller, turns, changed);
  let row = null;
  element.tick = () => setText(changed, ago(row.changed_at));
  element.update = (now) => {
    row = now;
    state.className = `status ${tone(row.status)}`;
    setText(state, word(row.status));
    setText(link, row.title.replace(/\s+/g, " ") || row.thread);
    setText(team, row.team);
    setText(caller, row.caller);
    setText(turns, number(row.turns));
    changed.title = clock(row.changed_at);
    element.tick();
  };
  return element;
}
