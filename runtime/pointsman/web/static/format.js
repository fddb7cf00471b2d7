// Numbers, times and states in words.

const STATUS = {
  running: ["running", "Running"],
  "handed over": ["muted", "Handed over"],
  waiting: ["muted", "Waiting"],
  "waiting for an agent": ["warn", "Needs an agent"],
  "waiting for a retry": ["warn", "To be retried"],
  "waiting for admission": ["warn", "Not admitted"],
  queued: ["muted", "Waits for its turn"],
  lost: ["muted", "Never started"],
  "asked to end": ["muted", "To be ended"],
  "asked a person": ["warn", "Asked a person"],
  "waiting for an answer": ["warn", "Needs an answer"],
  "in review": ["running", "In review"],
  "being refined": ["running", "In refinement"],
  expanded: ["running", "In items"],
  held: ["warn", "Held back"],
  succeeded: ["good", "Done"],
  completed: ["good", "Completed"],
  partial: ["warn", "Partly done"],
  failed: ["bad", "Failed"],
  cancelled: ["muted", "Cancelled"],
  skipped: ["muted", "Skipped"],
  abandoned: ["muted", "Abandoned"],
};

export const STRATEGY = {
  plan_and_execute: "plan and execute",
  adaptive: "adaptive",
  choreography: "choreography",
  fixed: "fixed plan",
  router: "router",
  pipeline: "pipeline",
  fan_out: "fan-out",
};

export const HEALTH = {
  ready: ["good", "Ready"],
  working: ["running", "Working"],
  busy: ["warn", "Queueing"],
  failing: ["bad", "Failing"],
  stuck: ["bad", "No worker for its tasks"],
  gone: ["muted", "Not running"],
  unknown: ["muted", "Not known"],
};

export const tone = (status) => (STATUS[status] || ["muted"])[0];
export const word = (status) => (STATUS[status] || ["", status])[1];

const WHOLE = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => WHOLE.format(value);
export const compact = (value) => (value < 10000 ? WHOLE.format(value) : COMPACT.format(value));
export const money = (value) => (!value ? "" : value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`);

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.00005) return "0 ms";
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${String(whole % 60).padStart(2, "0")}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

// An agent and a task. Both often have the same name.
export const whose = (agent, task) => (!task || task === agent ? agent : `${agent} · ${task}`);

// Use the clock of the server, because the clock of this machine may be wrong.
let drift = 0;
export const setNow = (iso) => { if (iso) drift = Date.parse(iso) - Date.now(); };
export const now = () => Date.now() + drift;

// Milliseconds since 1970 with microseconds, which `Date` omits. A call may take less than a millisecond.
const exact = (iso) => Date.parse(iso) + Number(`0.${(/\.\d{3}(\d+)/.exec(iso) || [0, 0])[1]}`);

export const span = (start, end) => (start ? Math.max(0, (end ? exact(end) : now()) - exact(start)) / 1000 : null);

export function until(iso) {
  const left = (exact(iso) - now()) / 1000;
  return left > 0 ? `${seconds(Math.ceil(left))} left` : "The time has expired";
}

// The duration of a task, or the status of a task that never began.
export function lasted({ status, started_at: from, ended_at: to }) {
  return status === "skipped" || (status === "abandoned" && from === to) ? word(status) : seconds(span(from, to));
}

export function ago(iso) {
  const past = Math.max(0, (now() - Date.parse(iso)) / 1000);
  if (past < 5) return "just now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86400)} d ago`;
}

export const clock = (iso) => new Date(iso).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

// Format JSON data for people. A text is unchanged, and an object with only one text is shown as this text.
export function readable(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "object" && !Array.isArray(value)) {
    const values = Object.values(value);
    if (values.length === 1 && typeof values[0] === "string") return values[0];
  }
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

export const pretty = (value) => JSON.stringify(value, null, 2);
