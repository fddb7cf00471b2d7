// A form for a value from a JSON Schema, with fields for objects, choices for enums, and otherwise JSON text. The
// server checks the value again.

import { h } from "./dom.js";
import { pretty } from "./format.js";

const MAX_DEPTH = 3; // depth of nested objects that get separate fields
const DATES = { date: "date", time: "time", email: "email", uri: "url" };

// `read` returns the value, or undefined for an empty optional field. `read` throws an error with a text for the user.
export function schemaForm(schema, label, value, { required = true, root = schema || {}, depth = 0 } = {}) {
  const [type, optional] = simplified(schema || { type: "string" }, root);
  const needed = required && !optional;
  const shown = value === undefined ? type.default : value;
  const choices = type.enum || ("const" in type ? [type.const] : null);
  if (choices) return choiceField(choices, label, shown, needed);
  if (type.type === "object" && type.properties && !additional(type) && depth < MAX_DEPTH) return objectFields(type, label, shown, { needed, root, depth });
  if (type.type === "boolean") return checkField(label, shown);
  if (type.type === "integer" || type.type === "number") return numberField(type, label, shown, needed);
  if (type.type === "string") return textField(type, label, shown, needed, depth);
  if (type.type === "array" && ["string", "integer", "number"].includes(simplified(type.items || {}, root)[0].type)) return linesField(simplified(type.items, root)[0], label, shown, needed);
  return jsonField(type, label, shown, needed);
}

// Return the schema without references, and true if the schema allows null. Pydantic writes `X | None` as anyOf.
function simplified(schema, root) {
  let [type, optional] = [schema, false];
  for (let step = 0; step < 10; step += 1) {
    const options = (type.anyOf || type.oneOf || []).filter((one) => one.type !== "null");
    const ref = type.$ref && /^#\/(\$defs|definitions)\/(.+)$/.exec(type.$ref);
    if (ref) type = { ...type, $ref: undefined, ...((root[ref[1]] || {})[ref[2]] || {}) };
    else if (options.length === 1) { optional ||= (type.anyOf || type.oneOf).length > 1; type = { ...type, anyOf: undefined, oneOf: undefined, ...options[0] }; }
    else if (type.allOf && type.allOf.length === 1) type = { ...type, allOf: undefined, ...type.allOf[0] };
    else break;
  }
  return [type, optional];
}

const additional = (type) => typeof type.additionalProperties === "object";
const unset = (value) => value === undefined || value === null;

function choiceField(choices, label, value, needed) {
  const text = (one) => (typeof one === "string" ? one : JSON.stringify(one));
  const select = h("select", { "aria-label": label, required: needed },
    needed ? "" : h("option", { value: "", text: "–" }), choices.map((one) => h("option", { value: JSON.stringify(one), text: text(one) })));
  if (value !== undefined) select.value = JSON.stringify(value);
  if (select.selectedIndex < 0) select.selectedIndex = 0;
  return { element: select, read: () => (select.value ? JSON.parse(select.value) : undefined) };
}

function checkField(label, value) {
  const box = h("input", { type: "checkbox", "aria-label": label, checked: value === true });
  return { element: box, read: () => box.checked, check: true };
}

function numberField(type, label, value, needed) {
  const field = h("input", { type: "number", "aria-label": label, required: needed, step: type.type === "integer" ? "1" : "any", min: type.minimum, max: type.maximum, value: unset(value) ? undefined : String(value) });
  return { element: field, read: () => (field.value === "" ? undefined : Number(field.value)) };
}

function textField(type, label, value, needed, depth) {
  const more = { "aria-label": label, required: needed && type.minLength > 0, maxlength: type.maxLength, minlength: type.minLength };
  const field = depth ? h("input", { type: DATES[type.format] || "text", ...more, pattern: type.format ? undefined : type.pattern }) : h("textarea", { rows: "3", ...more });
  if (!unset(value)) field.value = value;
  if (type.format === "date-time") field.placeholder = "2026-01-31T12:00:00Z";
  return { element: field, read: () => (field.value === "" && (!needed || type.format) ? undefined : field.value) };
}

function linesField(item, label, value, needed) {
  const field = h("textarea", { rows: "3", "aria-label": `${label}, one a line`, placeholder: "One a line" });
  if (Array.isArray(value)) field.value = value.join("\n");
  return { element: field, read: () => {
    const lines = field.value.split("\n").map((line) => line.trim()).filter(Boolean);
    return lines.length || needed ? lines.map((line) => (item.type === "string" ? line : Number(line))) : undefined;
  } };
}

function jsonField(type, label, value, needed) {
  const field = h("textarea", { rows: "4", spellcheck: "false", class: "json", "aria-label": `${label}, as JSON`, required: needed, placeholder: `JSON, by this schema: ${JSON.stringify(type)}` });
  if (value !== undefined) field.value = pretty(value);
  return { element: field, read: () => {
    if (!field.value.trim()) return undefined;
    try { return JSON.parse(field.value); } catch (error) { field.focus(); throw new Error(`${label} is not valid JSON: ${error.message}`); }
  } };
}

function objectFields(type, label, value, { needed, root, depth }) {
  const wanted = new Set(type.required || []);
  const fields = Object.entries(type.properties).map(([name, of]) => {
    const title = of.title || name;
    const field = schemaForm(of, title, value && typeof value === "object" ? value[name] : undefined, { required: wanted.has(name) && needed, root, depth: depth + 1 });
    return { name, field, of, title };
  });
  const element = h("fieldset", { class: "fields" }, h("legend", { class: depth ? "" : "unseen", text: label }), fields.map(({ name, field, of, title }) => {
    const hint = of.description ? h("span", { class: "hint", text: of.description }) : "";
    if (field.element.matches("fieldset")) return h("div", {}, field.element, hint);
    const mark = wanted.has(name) && !field.check ? "" : h("span", { class: "muted", text: field.check ? "" : " (optional)" });
    return h("label", { class: field.check ? "check" : "" }, field.check ? [field.element, title] : [h("span", {}, title, mark), field.element], hint);
  }));
  return { element, read: () => {
    const found = Object.fromEntries(fields.map(({ name, field }) => [name, field.read()]).filter(([, one]) => one !== undefined));
    return !Object.keys(found).length && !needed ? undefined : found;
  } };
}

// Show the first field that is not valid, if there is such a field.
export function isValid(element) {
  const fields = [element, ...element.querySelectorAll("*")].filter((one) => one.matches("input, select, textarea"));
  return fields.every((one) => one.reportValidity());
}
