// Elements from names, attributes and children. A child that is not an element becomes text: nothing here parses markup,
// so what a model wrote can only ever be read.

export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== undefined && child !== null && child !== false) element.append(child);
  }
  return element;
}

// Children in this order, moving only what moved: focus and open details survive.
export function arrange(parent, children) {
  let at = parent.firstChild;
  for (const child of children) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title", text: title }), ...more.map((line) => h("p", {}, line)));
}

export function command(text) {
  return h("code", { class: "command", text });
}

export function note(text, tone = "plain") {
  const shown = h("p", { class: `note ${tone}`, text });
  const close = h("button", { type: "button", class: "quiet", "aria-label": "Close", text: "×", onclick: () => shown.remove() });
  shown.append(close);
  document.getElementById("notes").append(shown);
  if (tone !== "bad") setTimeout(() => shown.remove(), 6000);
}

export function copyable(text, label) {
  return h("button", {
    type: "button", class: "copy", title: `Copy ${label}`, text,
    onclick: async (event) => {
      await navigator.clipboard.writeText(text);
      const button = event.currentTarget;
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 1200);
    },
  });
}
