// The router of the pages, and the header.

import { h } from "./dom.js";
import { agentsPage } from "./agents.js";
import { batchesPage } from "./batches.js";
import { chatPage } from "./chat.js";
import { me } from "./me.js";
import { questionsPage } from "./questions.js";
import { lettersPage } from "./letters.js";
import { askFor } from "./request.js";
import { schedulesPage } from "./schedules.js";
import { threadsPage } from "./threads.js";
import { webhooksPage } from "./webhooks.js";
import { workflowPage } from "./workflow.js";
import { workflowsPage } from "./workflows.js";

const main = document.getElementById("main");
const PAGES = [
  [/^\/$/, workflowsPage],
  [/^\/workflows\/([A-Za-z0-9_-]+)$/, workflowPage],
  [/^\/threads$/, threadsPage],
  [/^\/threads\/((?:[A-Za-z0-9_-]+\/){2}[A-Za-z0-9_-]+)$/, chatPage],
  [/^\/batches$/, batchesPage],
  [/^\/schedules$/, schedulesPage],
  [/^\/webhooks$/, webhooksPage],
  [/^\/agents$/, agentsPage],
  [/^\/questions$/, questionsPage],
  [/^\/dead-letters$/, lettersPage],
];
let leave = () => {};

export function go(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"]({}, "", path);
  draw({ moved: !replace });
}

function draw({ moved = false } = {}) {
  const [page, match] = PAGES.map(([form, page]) => [page, form.exec(location.pathname)]).find(([, match]) => match)
    || [workflowsPage, [""]];
  for (const link of document.querySelectorAll("header nav a")) {
    const part = link.pathname === "/" ? "/workflows/" : `${link.pathname}/`;
    const here = link.pathname === location.pathname || location.pathname.startsWith(part);
    if (here) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - 40; // a phone shows some links at a time
    } else link.removeAttribute("aria-current");
  }
  leave();
  main.replaceChildren();
  leave = page(main, match[1], go) || (() => {});
  if (moved) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.target || link.hasAttribute("download") || link.origin !== location.origin || link.hash) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
addEventListener("popstate", () => draw({ moved: true }));

addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog")) return;
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
  if (event.key === "n" && (document.documentElement.dataset.role || "operate") === "operate") { event.preventDefault(); askFor(go); }
});

const theme = document.getElementById("theme");
const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function showTheme() { theme.replaceChildren(h("span", { "aria-hidden": "true", text: dark() ? "☀" : "☾" })); }
theme.addEventListener("click", () => {
  const chosen = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("pointsman-theme", chosen); } catch { /* the choice lasts until the page is closed */ }
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTheme();

// The server refuses forbidden actions of a role. The page only hides them.
async function showUser() {
  const user = await me;
  if (!user) return;
  document.documentElement.dataset.role = user.role;
  const leaving = document.getElementById("log-out");
  leaving.hidden = !user.name;
  leaving.textContent = user.name;
  leaving.setAttribute("aria-label", `Log out ${user.name}`);
  leaving.addEventListener("click", async () => {
    await fetch("/logout", { method: "POST" });
    location.replace("/login");
  });
}
showUser();

document.getElementById("ask").addEventListener("click", () => askFor(go));
draw();
