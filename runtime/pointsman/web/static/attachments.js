// The files of a form: a button to choose files, a list, and the uploads. Files can also be dropped on the form.

import { h, setText } from "./dom.js";
import { fileSize, upload } from "./files.js";

// `to` returns the team and the id of the future request. `fail` shows a problem.
export function attachments({ to, fail }) {
  let files = []; // {file, chip, size, key, stored}; `key` has the team and the id of the request, and `stored` is the upload for `key`
  let given = []; // the files that `stored` returned last
  let last = Promise.resolve(); // one upload at a time, because the server limits parallel uploads
  const picker = h("input", { type: "file", multiple: true, class: "unseen", tabindex: "-1", "aria-hidden": "true" });
  const button = h("button", { type: "button", text: "Attach", "aria-label": "Attach files", onclick: () => picker.click() });
  const list = h("ul", { class: "chips", "aria-label": "Attached files", "aria-live": "polite" });
  picker.addEventListener("change", () => { for (const file of picker.files) add(file); picker.value = ""; });

  function add(file) {
    const size = h("span", { class: "muted", text: fileSize(file.size) });
    const remove = h("button", { type: "button", class: "quiet", "aria-label": `Remove ${file.name}`, text: "×", onclick: () => drop(one) });
    const one = { file, size, chip: h("li", {}, h("span", { text: file.name }), size, remove), key: "", stored: null };
    files.push(one);
    list.append(one.chip);
    fail("");
    if (to().team) store(one); // if there is no team yet, the file is uploaded before the form is sent
  }

  // An upload belongs to one request of one team. After a change of the team or a failure, the file is uploaded again.
  function store(one) {
    const { team, id } = to();
    const key = `${team}/${id}`;
    if (one.key === key) return one.stored;
    one.key = key;
    setText(one.size, "uploading");
    one.stored = last = last.then(async () => {
      const done = files.includes(one) && one.key === key ? await upload(one.file, { team, id }) : { ok: false };
      if (one.key !== key || !files.includes(one)) return done;
      setText(one.size, done.ok ? fileSize(done.content.size) : "not uploaded");
      if (!done.ok) { one.key = ""; fail(`${one.file.name}: ${done.error}`); }
      return done;
    });
    return one.stored;
  }

  function drop(one) {
    const focused = one.chip.contains(document.activeElement);
    files = files.filter((other) => other !== one);
    one.chip.remove();
    if (focused) button.focus();
  }

  return {
    button, list, picker,
    acceptDrops: (form) => {
      form.addEventListener("dragover", (event) => event.preventDefault());
      form.addEventListener("drop", (event) => { event.preventDefault(); for (const file of event.dataTransfer.files) add(file); });
    },
    // Return the field of the request with the files, or null if a file could not be uploaded.
    stored: async () => {
      const all = await Promise.all(files.map(async (one) => ({ one, done: await store(one) })));
      const kept = all.filter(({ one }) => files.includes(one));
      given = kept.map(({ one }) => one);
      return kept.every(({ done }) => done.ok) ? { files: kept.map(({ done }) => done.content) } : null;
    },
    clear: () => { for (const one of given) drop(one); }, // a file that was added during the upload is for the next request
  };
}
