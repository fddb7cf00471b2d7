// The form of the next turn: a text, and files. Enter sends, Shift-Enter begins a line.

import { attachments } from "./attachments.js";
import { h } from "./dom.js";
import { post } from "./live.js";
import { newId } from "./request.js";

export function composer({ team, thread, sent }) {
  let id = newId(); // the id of the next request; after a second press or a lost answer, there is still only one turn
  const text = h("textarea", { rows: "2", required: true, "aria-label": `Message to ${team}`, placeholder: `Message to ${team}` });
  const send = h("button", { class: "primary", text: "Send" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const fail = (said) => { problem.textContent = said; problem.hidden = !said; };
  const files = attachments({ to: () => ({ team, id }), fail });
  const element = h("form", { class: "composer", "data-needs": "operate", onsubmit: submit }, files.list, problem, text, files.picker, h("p", { class: "buttons" }, files.button, send));
  files.acceptDrops(element);

  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    element.requestSubmit();
  });

  async function submit(event) {
    event.preventDefault();
    const input = text.value.trim();
    if (send.ariaDisabled || !input) return;
    send.ariaDisabled = "true"; // `disabled` would remove the focus
    send.textContent = "Sending";
    fail("");
    const attached = await files.stored();
    const done = attached && await post("/api/requests", { team, input, request_id: id, thread, ...attached });
    send.ariaDisabled = null;
    send.textContent = "Send";
    if (!done) return; // a file could not be uploaded
    if (!done.ok) {
      fail(done.status < 500 ? done.error : `${done.error || "The message could not be sent."} Send again: the message is not duplicated.`);
      return;
    }
    id = newId();
    files.clear();
    if (text.value.trim() === input) text.value = ""; // otherwise the text is the next message
    sent({ id: done.id, request: input });
  }

  return { element, focus: () => text.focus({ preventScroll: true }) };
}
