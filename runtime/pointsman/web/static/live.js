// One stream for the open page. The browser reconnects automatically with the last event id. A hidden tab disconnects.

import { note } from "./dom.js";

export const teams = new Set(); // known teams for forms; teams with a supervisor are first

let stop = () => {};
let know = () => {};

// `handlers` has a function for each event. `reset` is called before a stream starts from the beginning. `known` is
// called with false while the dashboard or the broker is unavailable, because the page may be out of date.
export function follow(path, handlers, reset = () => {}, known = () => {}) {
  stop();
  know = known;
  let source = null;
  let again = 0;

  const open = () => {
    reset();
    source = new EventSource(path);
    source.onerror = () => {
      connection("lost");
      if (source.readyState === EventSource.CLOSED) {
        clearTimeout(again);
        again = setTimeout(reopen, 2000);
      }
    };
    for (const name of new Set([...Object.keys(handlers), "status"])) {
      source.addEventListener(name, (event) => {
        const data = JSON.parse(event.data);
        if (data.live) status(data.live);
        if (handlers[name]) handlers[name](data);
      });
    }
  };
  const reopen = async () => {
    const response = await fetch("/api/dead-letters/-").catch(() => null); // an answer of any kind; 401 means that the user must log in
    if (response && response.status === 401) location.assign("/login");
    else if (source) { source.close(); open(); }
  };
  const seen = () => {
    clearTimeout(again);
    if (document.hidden) { if (source) source.close(); }
    else if (!source || source.readyState === EventSource.CLOSED) open();
  };

  document.addEventListener("visibilitychange", seen);
  stop = () => {
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(again);
    if (source) source.close();
    source = null;
  };
  open();
}

export async function post(path, body = {}) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  }).catch(() => null);
  if (!response) return { ok: false, error: "The dashboard does not answer. Is it still running?" };
  if (response.status === 401) location.assign("/login");
  const content = await response.json().catch(() => ({}));
  return { ...content, ok: response.ok, status: response.status };
}

export async function get(path) {
  const response = await fetch(path).catch(() => null);
  if (!response || !response.ok) {
    const content = response ? await response.json().catch(() => ({})) : {};
    note(content.error || "The dashboard does not answer. Is it still running?", "bad");
    return null;
  }
  return response.json();
}

const LINK = { live: "Live", lost: "Reconnecting", broker: "No broker", reading: "Reading the log" };

function connection(state, detail = "") {
  know(state === "live" || state === "reading");
  const link = document.getElementById("link");
  if (link.dataset.state !== state) link.dataset.state = state;
  const text = document.getElementById("link-text");
  const shown = LINK[state] + detail;
  if (text.textContent !== shown) text.textContent = shown;
}

function status({ broker, read, letters, stuck, questions, namespace, teams: names }) {
  for (const name of names) teams.add(name);
  if (!broker) connection("broker");
  else if (read < 1) connection("reading", ` ${Math.floor(read * 100)} %`);
  else connection("live");
  badge("letters", letters, "dead letters");
  badge("questions", questions, "questions are open");
  badge("stuck", stuck, "agents have problems");
  const place = document.getElementById("namespace");
  if (place.textContent !== namespace) place.textContent = namespace;
}

function badge(id, count, what) {
  const element = document.getElementById(id);
  element.hidden = !count;
  element.textContent = count > 999 ? "999+" : count || "";
  element.title = count ? `${count} ${what}` : "";
}
