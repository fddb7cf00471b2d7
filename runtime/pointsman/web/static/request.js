// The form for a new request. The form makes the id, so a second click or a lost answer makes no second workflow.

import { attachments } from "./attachments.js";
import { h, note } from "./dom.js";
import { pretty } from "./format.js";
import { post, teams } from "./live.js";

// An id for a request or a thread. `randomUUID` is missing on pages over plain HTTP.
export const newId = () => (crypto.randomUUID ? crypto.randomUUID() : Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join(""));

export function askFor(go, before = null) {
  if (document.querySelector("dialog[open]")) return;
  const id = newId();
  const team = h("input", { id: "ask-team", list: "ask-teams", required: true, autocomplete: "off", pattern: "[A-Za-z0-9_\\-]{1,64}", placeholder: "customer-service" });
  const text = h("textarea", { id: "ask-text", required: true, rows: "5", placeholder: "What should the team do?" });
  const asJson = h("input", { type: "checkbox", id: "ask-json" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const fail = (said) => { problem.textContent = said; problem.hidden = !said; };
  const files = attachments({ to: () => ({ team: team.value.trim(), id }), fail });
  const send = h("button", { class: "primary", text: "Send" });
  const dialog = h("dialog", { "aria-labelledby": "ask-title" },
    h("form", { method: "dialog" },
      h("h2", { id: "ask-title", text: "New request" }),
      h("label", { for: "ask-team", text: "Team" }), team,
      h("datalist", { id: "ask-teams" }, [...teams].sort().map((name) => h("option", { value: name }))),
      h("label", { for: "ask-text", text: "Request" }), text,
      h("label", { class: "check" }, asJson, "The request is a JSON object"),
      files.list, files.picker, problem,
      h("p", { class: "buttons" }, files.button, h("button", { type: "button", text: "Cancel", onclick: () => dialog.close() }), send)));
  if (before) {
    const whole = typeof before.input === "string" ? before.input : pretty(before.input);
    asJson.checked = typeof before.input !== "string";
    [team.value, text.value] = [before.team, whole];
  } else if (teams.size) team.value = [...teams][0];
  files.acceptDrops(dialog.querySelector("form"));
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.ariaDisabled) return;
    let input = text.value.trim();
    if (asJson.checked) {
      try { input = JSON.parse(input); } catch (error) { fail(`The text is not valid JSON: ${error.message}`); return; }
    }
    send.ariaDisabled = "true"; // `disabled` would remove the focus, and Ctrl-Enter would still send
    send.textContent = "Sending"; // without a broker, the error takes some seconds
    fail("");
    const attached = await files.stored();
    const done = attached && await post("/api/requests", { team: team.value.trim(), input, request_id: id, ...attached });
    send.ariaDisabled = null;
    send.textContent = "Send";
    if (!done) return; // a file could not be uploaded
    if (!done.ok) {
      const refused = done.status < 500; // otherwise the request may be stored
      const said = done.error || "The request could not be sent.";
      fail(refused ? said : `${said} Send again: the request is not duplicated.`);
      if (!dialog.open) note(said, "bad");
      return;
    }
    teams.add(done.team);
    dialog.close();
    note("Sent.");
    go(`/workflows/${done.id}?team=${done.team}`);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) dialog.querySelector("form").requestSubmit();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (team.value ? text : team).focus();
}
