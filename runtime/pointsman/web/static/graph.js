// Draw a plan from left to right, with each task right of its dependencies. The longest path to a task is the number of
// the layer. In the layer, a task is at the middle of its neighbours. A layer with too many tasks for one column has
// several columns. Very many tasks have the order of the plan, because users then search for tasks and do not follow
// lines. Lines cross a column between two tasks.

import { h, s, setAttribute, setText } from "./dom.js";
import { lasted, tone, word } from "./format.js";

const SIZES = [ // by largest number of tasks: width, height, gaps, and tasks in a column
  [60, 172, 46, 52, 12, 14],
  [200, 132, 34, 40, 8, 20],
  [Infinity, 92, 24, 32, 6, 25],
];
const SMALLEST = 0.7;
const CROWD = 60; // with more tasks, lines are paler than tasks
const SWEEPS = 6; // sweeps to the right and back; more sweeps have no visible effect
const BESIDE = 2.5; // distance between parallel lines, if there is enough space

export function layout(ids, needs, inOrder = ids.length > 200) {
  const known = new Set(ids);
  const before = new Map(ids.map((id) => [id, (needs[id] || []).filter((one) => known.has(one) && one !== id)]));
  const after = new Map(ids.map((id) => [id, []]));
  for (const [id, on] of before) for (const one of on) after.get(one).push(id);
  const layer = layers(ids, before, after);
  const columns = [];
  for (const id of ids) (columns[layer.get(id)] ||= []).push(id);
  if (!inOrder) order(columns, before, after);
  return { columns: columns.filter(Boolean), before, after };
}

function layers(ids, before, after) {
  const left = new Map(ids.map((id) => [id, before.get(id).length]));
  const layer = new Map(ids.map((id) => [id, 0]));
  const ready = ids.filter((id) => !left.get(id));
  for (let at = 0; at < ready.length; at += 1) {
    for (const next of after.get(ready[at])) {
      layer.set(next, Math.max(layer.get(next), layer.get(ready[at]) + 1));
      left.set(next, left.get(next) - 1);
      if (!left.get(next)) ready.push(next);
    }
  }
  return layer;
}

function order(columns, before, after) {
  const place = new Map();
  const note = (column) => column.forEach((id, at) => place.set(id, at / column.length));
  columns.forEach(note);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0;
    for (const column of forth ? columns : [...columns].reverse()) {
      const middle = new Map(column.map((id) => {
        const near = (forth ? before : after).get(id);
        return [id, near.length ? near.reduce((sum, one) => sum + place.get(one), 0) / near.length : place.get(id)];
      }));
      column.sort((one, other) => middle.get(one) - middle.get(other));
      note(column);
    }
  }
}

// Pass each column through the gap that is nearest to the straight line to the end.
function gapsBetween(y, toY, passed, step) {
  return passed.map(({ top, last }, at) => {
    const straight = y + (toY - y) / (passed.length - at + 1);
    const gap = Math.min(last, Math.max(0, Math.round((straight - top) / step)));
    y = top + gap * step;
    return gap;
  });
}

// Return the first lane that is free in all of these gaps, to keep the line as straight as possible.
function laneIn(gaps, passed) {
  const taken = passed.map((column, at) => (column.taken[gaps[at]] ||= new Set()));
  let lane = 0;
  while (taken.some((lanes) => lanes.has(lane))) lane += 1;
  for (const lanes of taken) lanes.add(lane);
  return lane;
}

function way(x, y, toX, toY, passed, gaps, beside, width, step) {
  let path = `M${x} ${y}`;
  passed.forEach(({ left, top }, at) => {
    const middle = top + gaps[at] * step + beside;
    if (middle !== y) path += curve(x, y, left, middle);
    [x, y] = [left + width, middle];
  });
  return path + curve(x, y, toX, toY);
}

function curve(x, y, toX, toY) { // after the straight part up to `x`
  const middle = (x + toX) / 2;
  return `H${x}C${middle} ${y} ${middle} ${toY} ${toX} ${toY}`;
}

export function planGraph(select) {
  const svg = s("svg", { role: "group", "aria-label": "Tasks of the plan; arrow keys move between them" });
  const frame = h("div", { class: "graph", tabindex: "-1" }, svg);
  const more = h("p", { class: "muted sideways", hidden: true, text: "The plan is wider than the screen: scroll sideways." });
  const measure = () => { more.hidden = frame.scrollWidth <= frame.clientWidth + 1; };
  new ResizeObserver(measure).observe(frame);
  const nodes = new Map();
  let shape = "";
  let grid = [];

  function draw(tasks, needs) {
    const place = new Map(Object.keys(needs).map((id, at) => [id, at])); // not the order of the starts, because this order changes
    const planned = [...tasks].sort((one, other) => (place.get(one.task_id) ?? -1) - (place.get(other.task_id) ?? -1));
    const now = JSON.stringify([planned.map((task) => task.task_id), needs]);
    if (now !== shape) {
      shape = now;
      build(planned, needs);
    }
    for (const task of tasks) nodes.get(task.task_id).update(task);
    measure();
  }

  // Update the times of running tasks, as the other panels do.
  function tick(tasks) {
    for (const task of tasks) if (!task.ended_at && nodes.has(task.task_id)) nodes.get(task.task_id).update(task);
  }

  function build(tasks, needs) {
    const [, width, height, gapX, gapY, rows] = SIZES.find(([most]) => tasks.length <= most);
    const { columns, before } = layout(tasks.map((task) => task.task_id), needs);
    const focused = document.activeElement && document.activeElement.dataset.task;
    grid = columns.flatMap((column) => {
      const parts = Math.ceil(column.length / rows);
      const each = Math.ceil(column.length / parts);
      return Array.from({ length: parts }, (_, part) => column.slice(part * each, (part + 1) * each));
    });
    const tallest = Math.max(...grid.map((column) => column.length), 1);
    const step = height + gapY;
    const total = tallest * step + gapY; // lines also pass above and below the tasks
    const places = new Map();
    const tops = [];
    let x = 1;
    let layerOf = 0;
    let left = columns[0] ? columns[0].length : 0;
    grid.forEach((column, index) => {
      const top = 1 + (total - (column.length * step - gapY)) / 2;
      column.forEach((id, at) => places.set(id, [x, top + at * step, index]));
      tops.push({ left: x, top: top - gapY / 2, last: column.length, taken: [] });
      left -= column.length;
      const ends = left <= 0;
      if (ends) left = (columns[layerOf += 1] || []).length;
      x += width + (ends ? gapX : gapY);
    });
    const byId = new Map(tasks.map((task) => [task.task_id, task]));
    const edges = s("g", { class: tasks.length > CROWD ? "edges crowd" : "edges" });
    const lines = [...before].flatMap(([id, on]) => on.map((one) => {
      const [fromX, fromY, first] = places.get(one);
      const [toX, toY, last] = places.get(id);
      const passed = tops.slice(first + 1, last);
      const gaps = gapsBetween(fromY + height / 2, toY + height / 2, passed, step);
      const [from, to] = [[fromX + width, fromY + height / 2], [toX, toY + height / 2]];
      return { one, id, from, to, passed, gaps, lane: laneIn(gaps, passed) };
    }));
    const last = lines.reduce((most, { lane }) => Math.max(most, lane), 0);
    const apart = Math.min(BESIDE, (gapY / 2 - 1) / Math.ceil(last / 2)); // half of them above and half below the middle
    for (const { one, id, from, to, passed, gaps, lane } of lines) {
      const beside = Math.round((lane % 2 ? -1 : 1) * Math.ceil(lane / 2) * apart * 1000) / 1000;
      const d = way(...from, ...to, passed, gaps, beside, width, step);
      edges.append(s("path", { d, "data-from": one, "data-to": id }));
    }
    nodes.clear();
    const drawn = [];
    for (const column of grid) {
      for (const id of column) {
        const node = nodeElement(byId.get(id), places.get(id), width, height, () => select(id));
        nodes.set(id, node);
        drawn.push(node);
      }
    }
    const wide = Math.max(1, x - gapX + 1);
    svg.setAttribute("viewBox", `0 0 ${wide} ${total + 2}`);
    svg.style.width = `${wide}px`; // the drawing shrinks while its text is readable; a wider drawing scrolls
    svg.style.minWidth = `${Math.round(wide * SMALLEST)}px`;
    svg.replaceChildren(edges, ...drawn);
    if (drawn.length) (nodes.get(focused) || drawn[0]).setAttribute("tabindex", "0");
    if (nodes.has(focused)) nodes.get(focused).focus();
  }

  svg.addEventListener("keydown", (event) => {
    const here = event.target.closest("[data-task]");
    if (!here) return;
    const column = grid.findIndex((ids) => ids.includes(here.dataset.task));
    const row = grid[column].indexOf(here.dataset.task);
    const to = {
      ArrowUp: () => grid[column][row - 1],
      ArrowDown: () => grid[column][row + 1],
      ArrowLeft: () => grid[column - 1] && grid[column - 1][Math.min(row, grid[column - 1].length - 1)],
      ArrowRight: () => grid[column + 1] && grid[column + 1][Math.min(row, grid[column + 1].length - 1)],
    }[event.key];
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(here.dataset.task); }
    const next = to && nodes.get(to());
    if (!next) return;
    event.preventDefault();
    here.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  function mark(chosen) {
    for (const [id, node] of nodes) node.classList.toggle("chosen", id === chosen);
    for (const edge of svg.querySelectorAll(".edges path")) {
      edge.classList.toggle("chosen", edge.dataset.from === chosen || edge.dataset.to === chosen);
    }
  }

  return { element: h("div", {}, more, frame), draw, mark, tick };
}

function nodeElement(task, [x, y], width, height, choose) {
  const letters = Math.floor((width - 30) / 6.9);
  const name = s("text", { x: 14, y: height > 40 ? 19 : height / 2 + 4, class: "name" });
  const more = height > 40 ? s("text", { x: 14, y: 35, class: "more" }) : null;
  const title = s("title");
  const node = s("g", { class: "node", transform: `translate(${x} ${y})`, role: "button", tabindex: "-1", "data-task": task.task_id, onclick: choose },
    title, s("rect", { class: "box", width, height, rx: 6 }), s("rect", { class: "stripe", x: 0, y: 0, width: 5, height, rx: 2.5 }), name, more);
  node.update = (now) => {
    setAttribute(node, "class", `node ${tone(now.status)}${node.classList.contains("chosen") ? " chosen" : ""}`);
    setText(name, cut(height > 40 ? now.agent : width > 100 && now.agent !== now.task_id ? `${now.task_id} · ${now.agent}` : now.task_id, letters));
    const took = lasted(now);
    const tries = now.attempt > 1 ? ` · ${now.attempt} tries` : "";
    const status = word(now.status);
    const time = took === status ? "" : took; // a task that never began has no duration
    const waits = !now.ended_at && now.status !== "running"; // the reason of a wait is more important than the duration
    const below = now.task_id === now.agent ? [status, time] : [now.task_id, waits ? status : took];
    if (more) setText(more, cut(`${below.filter(Boolean).join(" · ")}${tries}`, Math.floor((width - 22) / 5.9)));
    const said = [now.task_id, now.agent, status.toLowerCase(), time].filter(Boolean).join(", ");
    setAttribute(node, "aria-label", said);
    setText(title, now.detail ? `${said}\n${now.detail}` : said);
  };
  return node;
}

const cut = (text, letters) => (text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text);
