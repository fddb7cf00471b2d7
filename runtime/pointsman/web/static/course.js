// The chart above the list: matching workflows by start time and status, in columns of equal duration up to now.

import { arrange, h } from "./dom.js";
import { number } from "./format.js";

const PARTS = [["open", "not ended"], ["ended", "cancelled"], ["bad", "failed or partly done"], ["good", "completed"]]; // from top to bottom
const OF = { good: 0, bad: 1, ended: 2, open: 3 }; // positions of the numbers in a column from the server

export function courseOf() {
  const bars = h("div", { class: "bars", role: "img" });
  const [from, until] = [h("span"), h("span", { text: "now" })];
  const element = h("div", { class: "course", hidden: true }, bars, h("p", { class: "number muted", "aria-hidden": "true" }, from, until));
  const columns = [];

  function show(course) {
    element.hidden = !course;
    if (!course) return;
    const most = Math.max(...course.columns.map((parts) => parts.reduce((sum, one) => sum + one)));
    arrange(bars, course.columns.map((parts, at) => {
      columns[at] ||= h("span", {}, PARTS.map(([name]) => h("i", { class: name })));
      const title = told(parts, course.start + at * course.step, course.step);
      if (columns[at].title !== title) columns[at].title = title;
      PARTS.forEach(([name], part) => { columns[at].children[part].style.height = `${(100 * parts[OF[name]]) / most}%`; });
      return columns[at];
    }));
    from.textContent = moment(course.start, course.columns.length * course.step);
    const sums = PARTS.map(([name, words]) => `${number(course.columns.reduce((sum, parts) => sum + parts[OF[name]], 0))} ${words}`);
    bars.setAttribute("aria-label", `Workflows by when they began, since ${from.textContent}: ${sums.reverse().join(", ")}`);
  }

  return { element, show };
}

function told(parts, start, step) {
  const counts = PARTS.filter(([name]) => parts[OF[name]]).map(([name, words]) => `${number(parts[OF[name]])} ${words}`).reverse();
  return `${moment(start, step)} to ${moment(start + step, step)}: ${counts.join(", ") || "none"}`;
}

function moment(seconds, span) {
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  const time = at.toLocaleTimeString(undefined, span < 60 ? { timeStyle: "medium" } : { timeStyle: "short" });
  return today ? time : `${at.toLocaleDateString(undefined, { day: "numeric", month: "short" })}, ${time}`;
}
