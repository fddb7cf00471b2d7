"""Draw the OpenAPI document as one HTML page that needs no script and loads nothing from other hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["draw_page"]

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
details { border: 1px solid #8886; border-radius: 6px; margin: 0.5rem 0; padding: 0.4rem 0.8rem; }
summary { cursor: pointer; }
summary b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid #8884; padding: 0.25rem 0.5rem; text-align: left; vertical-align: top; }
"""


def draw_page(document: Mapping[str, Any]) -> str:
    """Draw an OpenAPI document.

    Args:
        document: The document.

    Returns:
        The page.
    """
    info = document["info"]
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
    head += f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
    parts = [
        f"{head}<body><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        '<p>The document: <a href="/openapi.json">openapi.json</a></p>',
        *_operations(document),
        "<h2>Schemas</h2>",
    ]
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
            f"<p>{escape(schema.get('description', ''))}</p>{_fields(schema)}</details>"
        )
    return "".join(parts) + "</body></html>"


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    tagged: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            tagged.setdefault(tag, []).append(_operation(path, method, operation))
    for tag, drawn in tagged.items():
        yield f"<h2>{escape(tag.capitalize())}</h2>{''.join(drawn)}"


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['in'])}</td>"
        f"<td>{_type(each.get('schema', {}))}</td><td>{escape(each.get('description', ''))}</td></tr>"
        for each in operation.get("parameters", ())
    ]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(
            f"<tr><td>body</td><td>{escape(kind)}</td><td>{_type(content.get('schema', {}))}</td><td></td></tr>"
        )
    for status, response in operation.get("responses", {}).items():
        kinds = response.get("content", {}) or {"": {}}
        for kind, content in kinds.items():
            rows.append(
                f"<tr><td>{escape(str(status))}</td><td>{escape(kind)}</td><td>{_type(content.get('schema', {}))}</td>"
                f"<td>{escape(response.get('description', ''))}</td></tr>"
            )
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
        f"</summary><p>{escape(operation.get('description', ''))}</p><table>{''.join(rows)}</table></details>"
    )


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code>{'' if name in required else ' (optional)'}</td><td>{_type(field)}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _type(schema: Mapping[str, Any]) -> str:
    if (reference := schema.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "enum" in schema:
        return escape(", ".join(map(str, schema["enum"])))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))
