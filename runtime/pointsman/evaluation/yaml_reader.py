"""Read YAML strictly. Refuse a repeated key, and unquoted text that YAML would read as a value of a different type."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

__all__ = ["read_yaml"]

_PREFIX: Final = "tag:yaml.org,2002:"
_JSON_FORMS: Final = {
    "bool": re.compile(r"true|false|True|False|TRUE|FALSE"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "float": re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]+)?"),
}
"""By type, the unquoted forms that are accepted, because YAML and JSON read such a form as the same value."""

_EXPONENT: Final = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")

_TYPES_OF_PLAIN_TEXT: Final = {
    "bool": "a boolean, but a suite accepts only `true` and `false`",
    "int": "a number in another notation",
    "float": "a number in another notation",
    "timestamp": "a date",
}


def read_yaml(text: bytes) -> Any:
    """Read one YAML document.

    Args:
        text: The document.

    Returns:
        The value.

    Raises:
        yaml.YAMLError: The text is not YAML, has a key twice in one mapping, or has an unquoted value such as `NO`,
            `12:30`, `010` or `2026-01-31`, which YAML does not read as text.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses repeated keys and ambiguous scalars."""

    def construct_mapping(self, node: Node, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, MappingNode):
            raise ConstructorError(None, None, "a mapping is expected", node.start_mark)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_PREFIX}merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                shown = key_node.value if isinstance(key_node, ScalarNode) else "a list or a mapping"
                raise ConstructorError(None, None, f"the key {shown} is not text; quote it", key_node.start_mark)
            if key in seen:
                raise ConstructorError(
                    None, None, f"the mapping has the key {key!r} twice; keep one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_document(self, node: Node) -> Any:
        self._check_scalars(node, set())
        return super().construct_document(node)

    def _check_scalars(self, node: Node, seen: set[int]) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, ScalarNode):
            self._check_scalar(node)
            return
        for each in node.value:
            for part in each if isinstance(each, tuple) else (each,):
                self._check_scalars(part, seen)

    def _check_scalar(self, node: ScalarNode) -> None:
        kind = node.tag.removeprefix(_PREFIX)
        if kind == "str" and node.style is None and _EXPONENT.fullmatch(node.value):
            raise ConstructorError(
                None,
                None,
                f"YAML reads {node.value} as text; quote it, or write a number without an exponent",
                node.start_mark,
            )
        if node.style is not None or kind not in _TYPES_OF_PLAIN_TEXT:
            return
        if kind in _JSON_FORMS and _JSON_FORMS[kind].fullmatch(node.value):
            return
        raise ConstructorError(
            None,
            None,
            f"YAML reads {node.value} as {_TYPES_OF_PLAIN_TEXT[kind]}; quote it: {node.value!r}",
            node.start_mark,
        )
