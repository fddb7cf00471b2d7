// The form of the next turn: a text, and files. Enter sends, Shift-Enter begins a line.

import { h } from "./dom.js";
import { fileSize, upload } from "./files.js";
import { post } from "./live.js";
import { newId } from "./request.js";

export function composer({ team, thread, sent }) {
  let id = newId(); // of the next request: a second press, or a lost answer, is still one turn
  let files = []; // {name, chip, file} of this request; `file` is set once it is stored
  const text = h("textarea", { rows: "2", required: true, "aria-label": `Message to ${team}`, placeholder: `Message to ${team}` });
  const picker = h("input", { type: "file", multiple: true, class: "unseen", tabindex: "-1", "aria-hidden": "true" });
  const attach = h("button", { type: "button", text: "Attach", "aria-label": "Attach files", onclick: () => picker.click() });
  const send = h("button", { class: "primary", text: "Send" });
  const chips = h("ul", { class: "chips", "aria-label": "Attached files" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const element = h("form", { class: "composer", "data-needs": "operate", onsubmit: submit }, chips, problem, text, picker, h("p", { class: "buttons" }, attach, send));

  const fail = (said) => { problem.textContent = said; problem.hidden = !said; };
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    element.requestSubmit();
  });
  picker.addEventListener("change", () => { for (const file of picker.files) add(file); picker.value = ""; });
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => { event.preventDefault(); for (const file of event.dataTransfer.files) add(file); });

  async function add(file) {
    const remove = h("button", { type: "button", class: "quiet", "aria-label": `Remove ${file.name}`, text: "×", onclick: () => drop(one) });
    const size = h("span", { class: "muted", text: "uploading" });
    const one = { name: file.name, chip: h("li", {}, h("span", { text: file.name }), size, remove), file: null };
    files.push(one);
    chips.append(one.chip);
    fail("");
    const done = await upload(file, { team, id });
    if (!done.ok) { drop(one); fail(`${file.name}: ${done.error}`); return; }
    one.file = done.content;
    size.textContent = fileSize(done.content.size);
  }

  function drop(one) {
    const focused = one.chip.contains(document.activeElement);
    files = files.filter((other) => other !== one);
    one.chip.remove();
    if (focused) attach.focus();
  }

  async function submit(event) {
    event.preventDefault();
    const input = text.value.trim();
    if (send.ariaDisabled || !input) return;
    if (files.some((one) => !one.file)) { fail("A file is still being uploaded."); return; }
    send.ariaDisabled = "true"; // `disabled` would remove the focus
    send.textContent = "Sending";
    fail("");
    const done = await post("/api/requests", { team, input, request_id: id, thread, ...(files.length ? { files: files.map((one) => one.file) } : {}) });
    send.ariaDisabled = null;
    send.textContent = "Send";
    if (!done.ok) {
      fail(done.status < 500 ? done.error : `${done.error || "The message could not be sent."} Send again: the message is not duplicated.`);
      return;
    }
    id = newId();
    files = [];
    chips.replaceChildren();
    text.value = "";
    sent({ id: done.id, request: input });
  }

  return { element, focus: () => text.focus({ preventScroll: true }) };
}
