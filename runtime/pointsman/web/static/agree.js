// A dialog before an action that cannot be undone.

import { h } from "./dom.js";

export function agree(question, word, danger = false) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "agree" },
      h("form", { method: "dialog" }, h("h2", { id: "agree", text: question }),
        h("p", { class: "buttons" }, h("button", { value: "", text: "Go back" }), h("button", { value: "yes", class: danger ? "danger" : "primary", text: word }))));
    // The event `close` follows later. Until then, the button that opened the dialog must already accept a press.
    dialog.addEventListener("cancel", () => resolve(false));
    dialog.addEventListener("submit", (event) => resolve(event.submitter.value === "yes"));
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true }); // the button that opened the dialog was removed
      resolve(false); // closed without an answer
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
