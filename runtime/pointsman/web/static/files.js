// Links to the files of workflows, and the upload of a file.

import { h } from "./dom.js";
import { compact } from "./format.js";

const UNITS = [[1048576, "MB"], [1024, "kB"]];

export function fileSize(bytes) {
  const [size, unit] = UNITS.find(([size]) => bytes >= size) || [1, "bytes"];
  return `${compact(Math.round(bytes / size))} ${unit}`;
}

export function fileLink(workflow, { name, sha256 }) {
  return h("a", { href: `/api/workflows/${workflow}/files/${sha256}?name=${encodeURIComponent(name)}`, download: name, text: name });
}

// The body is the file itself. The browser sends this content type to another site only after a preflight request.
export async function send(path, file) {
  const response = await fetch(path, { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file }).catch(() => null);
  if (!response) return { ok: false, error: "The upload broke off. Is the dashboard still running?" };
  if (response.status === 401) location.assign("/login");
  const content = await response.json().catch(() => ({}));
  return response.ok ? { ok: true, content } : { ok: false, error: content.error || `The server answered ${response.status}.` };
}

export function upload(file, { team, id }) {
  return send(`/api/files?${new URLSearchParams({ team, request_id: id, name: file.name })}`, file);
}
