// The timeline: a lane for each task, solid for work and pale for waiting, with the calls below the lane.

import { arrange, h, setText } from "./dom.js";
import { compact, lasted, now, seconds, span, tone, whose, word } from "./format.js";

const OPEN = 30; // up to this number of tasks, lanes are first unfolded
const LABEL = 64; // pixels for a time on the axis
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400];

export function timeline(select) {
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  const lanes = h("ol", { class: "lanes", "aria-label": "Tasks in the order they began" });
  const element = h("div", { class: "timeline" }, axis, lanes);
  const rows = new Map();
  const folded = new Map();
  let view = null;

  function draw(next) {
    view = next;
    const start = Date.parse(view.started_at);
    const end = Math.max(start + 1, view.ended_at ? Date.parse(view.ended_at) : now());
    const scale = { start, whole: end - start };
    drawAxis(axis, scale.whole / 1000, Math.max(2, Math.min(6, Math.floor(axis.clientWidth / LABEL))));
    const few = view.tasks.length <= OPEN;
    const shown = [];
    for (const task of view.tasks) {
      if (!task.started_at) continue;
      const open = folded.has(task.task_id) ? folded.get(task.task_id) : few;
      shown.push(row(`t ${task.task_id}`, task, 0, scale, unfolds(task) ? open : null));
      if (open) under(task, task.task_id, 1, scale, shown);
    }
    for (const key of rows.keys()) if (!shown.includes(rows.get(key))) rows.delete(key);
    arrange(lanes, shown);
  }

  function under(node, key, depth, scale, shown) {
    const only = depth === 1 && node.children && node.children.length === 1;
    (node.children || []).forEach((child, at) => {
      const name = `${key} ${at}`;
      if (!(only && child.kind === "attempt")) shown.push(row(name, child, depth, scale, null)); // a single attempt has the bar of the task
      under(child, name, depth + 1, scale, shown);
    });
  }

  function row(key, node, depth, scale, open) {
    if (!rows.has(key)) rows.set(key, lane(depth, node, () => {
      const before = folded.has(node.task_id) ? folded.get(node.task_id) : view.tasks.length <= OPEN;
      folded.set(node.task_id, !before);
      draw(view);
    }, () => select(node.task_id)));
    const found = rows.get(key);
    found.update(node, scale, open);
    return found;
  }

  function mark(chosen) {
    for (const each of lanes.children) each.classList.toggle("chosen", each.dataset.task === chosen);
  }

  return { element, draw, mark, tick: () => view && !view.ended_at && draw(view) };
}

// The calls of a single attempt are below its task, without a lane for the attempt.
const unfolds = ({ children = [] }) => children.length > 1 || children.some((attempt) => attempt.children);

function drawAxis(axis, whole, most) {
  const few = STEPS.findIndex((one) => whole / one <= most);
  const step = few < 0 ? whole / most : STEPS[few] > whole && few ? STEPS[few - 1] : STEPS[few]; // at least two values
  const ticks = [];
  for (let at = 0; at <= whole * 1.0001; at += step) {
    const tick = h("span", { text: at ? seconds(at) : "0" });
    tick.style.left = `${(100 * at) / whole}%`;
    ticks.push(tick);
  }
  axis.replaceChildren(...ticks);
}

const ROLE = { plan: "plans", classify: "chooses", synthesize: "writes the answer" };

function lane(depth, node, fold, choose) {
  const task = depth === 0;
  const twist = task ? h("button", { type: "button", class: "twist", onclick: fold }) : h("span", { class: "twist" });
  const name = h(task ? "button" : "span", task ? { type: "button", class: "lane-name", onclick: choose } : { class: "lane-name" });
  const took = h("span", { class: "number" });
  const track = h("div", { class: "track" });
  const element = h("li", { class: `lane depth-${Math.min(depth, 3)}`, "data-task": node.task_id },
    h("div", { class: "label" }, twist, name), track, took);
  const bar = h("i", { class: "span" });
  const parts = [];
  element.update = (now, scale, open) => {
    const status = tone(now.status);
    if (task) {
      twist.classList.toggle("none", open === null);
      twist.disabled = open === null;
      setText(twist, open ? "▾" : "▸");
      twist.setAttribute("aria-expanded", String(Boolean(open)));
      twist.setAttribute("aria-label", `Attempts and calls of ${now.task_id}`);
    }
    setText(name, label(now));
    name.title = now.detail || "";
    const used = now.usage ? `  ${compact(now.usage.input_tokens + now.usage.output_tokens)} tokens` : "";
    const length = span(now.started_at, now.ended_at);
    setText(took, lasted(now));
    took.title = used.trim();
    bar.className = `span ${now.kind} ${status}`;
    bar.title = `${word(now.status)}, ${seconds(length)}${used}${now.detail ? `\n${now.detail}` : ""}`;
    bar.hidden = !begun(now);
    if (begun(now)) stretch(bar, now, scale);
    const attempts = task ? (now.children || []).filter((attempt) => begun(attempt) && !attempt.status.startsWith("waiting")) : [];
    attempts.forEach((attempt, at) => {
      parts[at] ||= h("i", {});
      parts[at].className = `part ${tone(attempt.status)}`;
      stretch(parts[at], within(attempt, now), scale);
    });
    arrange(track, [bar, ...parts.slice(0, attempts.length)]);
  };
  return element;
}

// The clocks of two machines differ by some milliseconds, so a start before the handoff is moved to the handoff.
const within = (attempt, task) => (Date.parse(attempt.started_at) < Date.parse(task.started_at) ? { ...attempt, started_at: task.started_at } : attempt);

const begun = (node) => Boolean(node.started_at); // an attempt in a queue has no start yet

function label(node) {
  if (node.kind === "task") return ROLE[node.role] ? `${node.agent} ${ROLE[node.role]}` : whose(node.agent, node.task_id);
  return node.name.replace(/^execute_tool /, "⚒ ").replace(/^chat /, "✎ ").replace(/^attempt (\d+)/, "Attempt $1");
}

function stretch(element, node, scale) {
  const from = Math.min(99.8, Math.max(0, (100 * (Date.parse(node.started_at) - scale.start)) / scale.whole));
  const until = node.ended_at ? Date.parse(node.ended_at) : now();
  const to = Math.min(100, (100 * (until - scale.start)) / scale.whole);
  element.style.left = `${from}%`;
  element.style.width = `${Math.max(0.2, to - from)}%`;
}
