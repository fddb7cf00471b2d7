// The pages of a long list: the shown range, and buttons for newer and older rows.

import { h, setText } from "./dom.js";
import { number } from "./format.js";

export function pager(turnTo) {
  let offset = 0;
  let size = 1;
  const to = (from) => () => { turnTo(Math.max(0, offset + from * size)); scrollTo(0, 0); };
  const newer = h("button", { type: "button", text: "Newer", onclick: to(-1) });
  const older = h("button", { type: "button", text: "Older", onclick: to(1) });
  const where = h("span", { class: "muted number" });
  const element = h("nav", { class: "pager", "aria-label": "Pages of the list", hidden: true }, newer, where, older);

  function show(from, each, count) {
    [offset, size] = [from, each];
    element.hidden = count <= size && !offset;
    newer.disabled = !offset;
    older.disabled = offset + size >= count;
    setText(where, `${number(Math.min(offset + 1, count))} to ${number(Math.min(offset + size, count))} of ${number(count)}`);
  }

  return { element, show };
}
