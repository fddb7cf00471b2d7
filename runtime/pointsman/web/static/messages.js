// The messages to a workflow, and the form to send a message to a running workflow. Enter sends, Shift-Enter begins a
// line.

import { h, note, setText } from "./dom.js";
import { clock, number } from "./format.js";
import { post } from "./live.js";
import { newId } from "./request.js";

const MAX_CHARS = 4000;

export function messagesPanel(workflow) {
  let id = newId(); // the id of the next message; after a second press or a lost answer, there is still only one message
  const list = h("ol", { class: "told", "aria-label": "Messages to the workflow, oldest first", "aria-live": "polite" });
  const unread = h("p", { class: "muted", hidden: true });
  const text = h("textarea", { rows: "2", required: true, maxlength: MAX_CHARS, "aria-label": "Message to the workflow", placeholder: "A further request, a correction, a missing fact" });
  const send = h("button", { class: "primary", text: "Send" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const form = h("form", { class: "tell", "data-needs": "operate", "aria-label": "Message", onsubmit: submit }, problem, text, send);
  const element = h("section", { class: "panel", "aria-labelledby": "messages", hidden: true },
    h("div", { class: "panel-head" }, h("h2", { id: "messages", text: "Messages" }), h("span", { class: "muted", text: "The next steps of the workflow read your messages." })),
    list, unread, form);

  const fail = (said) => { setText(problem, said); problem.hidden = !said; };
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });

  async function submit(event) {
    event.preventDefault();
    const said = text.value.trim();
    if (send.ariaDisabled || !said) return;
    send.ariaDisabled = "true"; // `disabled` would remove the focus
    fail("");
    const done = await post(`/api/workflows/${workflow}/messages`, { text: said, message_id: id });
    send.ariaDisabled = null;
    if (!done.ok) { fail(done.error); return; }
    id = newId();
    if (text.value.trim() === said) text.value = ""; // otherwise the text is the next message
    if (done.number === null) note(done.said); // the list shows recorded messages
  }

  function show(view) {
    const open = !view.ended_at;
    element.hidden = !open && !view.messages.length;
    if (view.messages.length) element.removeAttribute("data-needs");
    else element.setAttribute("data-needs", "operate"); // without messages there is only the form
    list.append(...view.messages.slice(list.childElementCount).map((one) => h("li", {},
      h("b", { text: one.by || "unknown" }), h("time", { class: "muted number", datetime: one.at, text: clock(one.at) }), h("p", { text: one.text }))));
    const left = (view.outcome && view.outcome.unread_messages) || 0;
    unread.hidden = !left;
    setText(unread, left === 1 ? "The workflow ended before a task read the last message." : `The workflow ended before a task read the last ${number(left)} messages.`);
    if (!open && form.contains(document.activeElement)) document.getElementById("main").focus({ preventScroll: true });
    form.hidden = !open;
  }

  return { element, show };
}
