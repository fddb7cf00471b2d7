// A dialog that asks whether to do what cannot be undone.

import { h } from "./dom.js";

export function agree(question, word, danger = false) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "agree" },
      h("form", { method: "dialog" }, h("h2", { id: "agree", text: question }),
        h("p", { class: "buttons" }, h("button", { value: "", text: "Keep it" }), h("button", { value: "yes", class: danger ? "danger" : "primary", text: word }))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true }); // the button that opened the dialog was removed
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
