// Make elements from names, attributes and children. A child that is not an element becomes text. Nothing here parses
// markup, so text of a model is never executed.

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

// Put the children into this order. Only children at a new place are moved, so focus and open details remain. If the
// focused child was removed, focus the next child, or else the previous child, for users without a mouse.
export function arrange(parent, children) {
  const kept = new Set(children);
  const next = heir(parent, kept);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove(); // otherwise all later children would move
  let at = parent.firstChild;
  for (const child of children) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  if (next) (next.matches("[tabindex]") ? next : next.querySelector("a, button") || next).focus({ preventScroll: true });
}

function heir(parent, kept) {
  let had = document.activeElement;
  if (had === parent || !parent.contains(had)) return null;
  while (had.parentElement !== parent) had = had.parentElement;
  if (kept.has(had)) return null;
  const old = [...parent.children];
  const at = old.indexOf(had);
  return [...old.slice(at), ...old.slice(0, at).reverse()].find((one) => kept.has(one)) || document.getElementById("main");
}

// Ignore a press while `act` runs. `disabled` would also remove the focus.
export function once(act) {
  return async (event) => {
    const button = event.currentTarget;
    if (button.ariaDisabled) return;
    button.ariaDisabled = "true";
    await act();
    button.ariaDisabled = null;
  };
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Skip an unchanged attribute, because usually only one of 500 tasks has changed.
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
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
