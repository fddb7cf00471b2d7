// The agents: instances, queued work, latencies and usage.

import { arrange, command, empty, h } from "./dom.js";
import { compact, HEALTH, money, number, seconds } from "./format.js";
import { follow } from "./live.js";

const COLUMNS = [["Health", ""], ["Agent", ""], ["Instances", "number"], ["Waiting", "number"], ["In work", "number"], ["Usual time", "number"], ["Slowest 5 %", "number"], ["Wait", "number"], ["Failed", "number"], ["Tokens", "number"], ["Cost", "number"], ["Version", "number"]];

export function agentsPage(main) {
  document.title = "Agents · Pointsman";
  const list = h("tbody", {});
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Agents" },
    h("table", { class: "agents" },
      h("thead", {}, h("tr", {}, COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: kind, text: name })))),
      list));
  const nothing = h("div", {});
  const teamList = h("tbody", {});
  const teamTable = h("section", { hidden: true }, h("h2", { class: "above-table", text: "Teams" }),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Teams" },
      h("table", { class: "agents teams" },
        h("thead", {}, h("tr", {}, [["Team", ""], ["Supervisors", "number"], ["Waiting requests", "number"]].map(([name, kind]) => h("th", { scope: "col", class: kind, text: name })))),
        teamList)));
  main.append(h("div", { class: "head-line" }, h("h1", { text: "Agents" }), h("p", { class: "muted", text: "Times are of each agent's newest 200 attempts; tokens and cost are of all attempts in the log." })), table, nothing, teamTable);
  const total = h("tr", { class: "total" });
  const rows = new Map();

  let agents = null;
  let teams = [];
  let known = true;
  function draw() {
    table.hidden = !agents.length;
    nothing.replaceChildren(...(agents.length ? [] : [empty("No agents yet.", "Start an agent, and it appears here:", command("pointsman worker module:name"))]));
    const sum = (of) => agents.reduce((all, one) => all + (of(one) || 0), 0);
    const now = (of) => cell(known ? number(sum(of)) : "–");
    renewed(total, [h("td"), h("th", { scope: "row", text: "All" }), now((one) => one.instances), now((one) => one.waiting), now((one) => one.working),
      h("td"), h("td"), h("td"), h("td"), cell(compact(sum((one) => one.record && one.record.tokens))), cell(money(sum((one) => one.record && one.record.cost))), h("td")]);
    const names = new Set(agents.map(({ name }) => name));
    for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
    const shown = agents.map((one) => {
      if (!rows.has(one.name)) rows.set(one.name, h("tr", {}));
      return renewed(rows.get(one.name), cells(one, known));
    });
    arrange(list, [...shown, ...(agents.length > 1 ? [total] : [])]);
    teamTable.hidden = !teams.length;
    teamList.replaceChildren(...teams.map((one) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `/?team=${one.name}`, title: "The workflows of the team" }, h("b", { text: one.name })),
        one.definitions > 1 ? h("p", { class: "bad", text: `${one.definitions} different definitions: start all supervisors from one.` }) : "",
        h("p", { class: "muted", text: one.description })),
      named("Supervisors", known ? number(one.supervisors) : "–"), named("Waiting requests", known && one.waiting !== null ? number(one.waiting) : "–"))));
  }

  follow("/api/live/agents", { agents: (told) => { agents = told.agents; teams = told.teams; draw(); } }, undefined, (now) => {
    if (now === known) return;
    known = now;
    if (agents) draw();
  });
}

const named = (name, text) => h("td", { class: "number", "data-name": name, text });
const cell = (text, tone = "") => h("td", { class: `number ${tone}`, text: text ?? "" });

// Replace the cells of a row that have changed. Equal cells stay, and keep the focus.
function renewed(row, now) {
  now.forEach((one, at) => {
    const before = row.children[at];
    one.dataset.name = COLUMNS[at][0]; // on a phone the head of the table is hidden
    if (!before) row.append(one);
    else if (!before.isEqualNode(one)) {
      const focused = before.contains(document.activeElement);
      before.replaceWith(one);
      if (focused) one.querySelector("a").focus({ preventScroll: true });
    }
  });
  return row;
}

function cells(agent, known) {
  const record = agent.record || {};
  const health = known ? agent.health : "unknown";
  const [tone, word] = HEALTH[health];
  const failed = record.failed ? `${number(record.failed)} of ${number(record.failed + record.succeeded)}` : "";
  return [
    h("td", {}, h("span", { class: `status ${tone}`, text: word })),
    h("th", { scope: "row" }, h("a", { href: `/?text=${agent.name}`, title: "The workflows in which the agent took part" }, h("b", { text: agent.name })), agent.role !== "work" ? h("span", { class: "tag", text: agent.role }) : "", agent.model ? h("span", { class: "tag", text: agent.model }) : "",
      known && agent.circuit ? h("span", { class: "tag", title: "The agent keeps failing. One task at a time is sent to test the agent.", text: agent.circuit.probe ? "circuit: probing" : "circuit: open" }) : "",
      agent.owner ? h("span", { class: "tag", title: "Only this team uses the agent", text: `of ${agent.owner}` }) : "",
      agent.mixed ? h("p", { class: "bad", text: agent.mixed }) : "",
      agent.problems.map((text) => h("p", { class: "muted", text })),
      h("p", { class: "muted", text: agent.description || (health === "stuck" ? "The agent does not run, but tasks wait for the agent." : "") })),
    ...(known ? [
      cell(agent.instances ? number(agent.instances) : "0"),
      cell(agent.waiting ? number(agent.waiting) : "0", agent.waiting ? "strong" : ""),
      cell(agent.working === null ? "" : `${number(agent.working)}${agent.slots ? ` of ${number(agent.slots)}` : ""}`),
    ] : [cell("–"), cell("–"), cell("–")]),
    cell(seconds(record.median)), cell(seconds(record.slow)), cell(seconds(record.wait)),
    cell(failed, record.failing >= 0.5 ? "bad" : ""), cell(record.tokens ? compact(record.tokens) : ""), cell(money(record.cost)),
    h("td", { class: "number", text: agent.versions.join("\n") }),
  ];
}
