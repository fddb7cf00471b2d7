// A dialog before an action that cannot be undone.

import { h } from "./dom.js";

export function agree(question, word, danger = false) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "agree" },
      h("form", { method: "dialog" }, h("h2", { id: "agree", text: question }),
        h("p", { class: "buttons" }, h("button", { value: "", text: "Go back" }), h("button", { value: "yes", class: danger ? "danger" : "primary", text: word }))));
    // Resolve at once and not in `close`, which follows later: the button that opened the dialog must accept a press.
    dialog.addEventListener("cancel", () => resolve(false));
    dialog.addEventListener("submit", (event) => resolve(event.submitter.value === "yes"));
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true }); // the dialog cannot return the focus if the button that opened it was removed
      resolve(false); // has an effect only if the dialog was closed without an answer
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
