"""Rules for the prose of the repository: docstrings, comments, help texts, error messages and documents.

`PYTHONPATH=tests python -m support.language [PATH ...]` prints `file:line: rule: sentence` and a count for each folder.
`tests/unit/test_language.py` has an example of a refused and of an accepted sentence for every rule.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.docstrings import incomplete_docstrings

__all__ = [
    "ROOT",
    "Finding",
    "allowances",
    "banned",
    "check",
    "check_file",
    "check_text",
    "files",
    "main",
    "texts_of",
    "undescribed_fields",
]

ROOT = Path(__file__).parents[2]
BANNED_FILE = ROOT / "tests/unit/banned_words.txt"
SOURCES = ("schemas", "runtime", "agents", "benchmarks", "examples")
GENERATED = frozenset({"docs/state-machine.md"})

_TEXT_KEYWORDS = frozenset({"help", "epilog", "short_help", "hint"})
_DESCRIBED_CALLS = frozenset(
    {"Field", "Header", "Query", "Path", "get", "post", "put", "patch", "delete"}
)  # fields, and the REST API
_TEXT_CALLS = frozenset({"Entry", "_Channel"})  # their texts are printed by `--help` or published in AsyncAPI
_SECTION = re.compile(
    r"\s*(Args|Arguments|Attributes|Returns?|Raises|Yields|Notes?|Examples?|Warnings?|See Also|Todo):\s*$"
)
_ENTRY = re.compile(r"(?:\*{0,2}[\w.]+(?: \([^)]*\))?|`[^`]+`): ")
_BULLET = re.compile(r"(?:[-*+]|\d+\.)\s+")
_END = re.compile(r"[.!?]+[\"')*_]*(?=\s+[A-Z`\"'(*\[\d]|\s*$)")
_CODE = re.compile(r"``.+?``|`[^`]+`|\]\([^)]*\)|https?://\S+|<[^>\n]+>", re.DOTALL)
_PLACEHOLDER = "`…`"

# The first words of a sentence that make it an indirect question or a free relative clause.
_QUESTION = re.compile(
    r"(?:what(?:ever|soever)?|who(?:ever|m|mever|se)?|whether|why|which(?:ever)?|how|that which"
    r"|those (?:who|that|of|which)|he who|one (?:who|that)"
    r"|(?:from|since|until|by|to|of|for|in|with|at|on|than) (?:when|what(?:ever)?|who(?:m|se|ever)?|where|which))"
    r"(?!\w)(?!-)",
    re.IGNORECASE,
)
_QUESTION_ALLOWED = re.compile(
    r"(?:how|what|where|when|which [\w-]+) to\b|for which reason|in which case", re.IGNORECASE
)
_CLAUSE = re.compile(r"(?:when|where|wherever)(?!\w)(?!-)", re.IGNORECASE)
_INVERTED = re.compile(r"(?:should|had|were|nor|be it)(?!\w)(?!-)", re.IGNORECASE)
_HEADING_ALLOWED = re.compile(
    r"(?:how to|when to|where to|what to|which [\w-]+ to|how it works|how [\w `-]+ works?$|why\b|what is|what's new)",
    re.IGNORECASE,
)
_NO_CLAUSE = re.compile(
    r"(?:in|on|at|by|with|without|of|for|from|to|or|and|nor|which|who|as|if|so|but|not|while|than|even|though|though|where|when"
    r"|after|before|because|since|until|unless)(?!\w)(?!-)",
    re.IGNORECASE,
)
_NOT_A_VERB = re.compile(
    r"(?:the|a|an|its?|all|every|each|one|two|this|that|these|those|no|some|any|both|by|of|for|from|in|on|at|to|with|without"
    r"|as|after|before|between|over|under|since|until|up|down|whose|is|are|has|was|may|must|can|could|there|another|not|never"
    r"|nothing|everything|something|anything|they|their|he|his|same|such|only|also|if|when|where|true|false|none|number)(?!\w)(?!-)",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"(?:it|its|they|their|theirs|them|those|that|the same|the others|none of|he|his|nothing|everything)(?!\w)(?!-)",
    re.IGNORECASE,
)
_PERSON = re.compile(
    r"(?:person|people|users?|operators?|readers?|authors?|callers?|engineers?|developers?|customers?|patients?|members?|someone"
    r"|anyone|everyone|reviewers?|contributors?|maintainers?|employees?|teams?|humans?|applicants?|buyers?)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose. `line` is the line of its first character; `kind` selects the rules that apply."""

    text: str
    line: int
    kind: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence that breaks a rule, and the position of the sentence. `path` is relative to the repository."""

    path: str
    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Banned:
    """Refused words, and the words to write `instead`. `of_persons` accepts them for persons ("a caller who ...")."""

    pattern: re.Pattern[str]
    instead: str
    of_persons: bool


@dataclass(frozen=True, slots=True)
class Allowance:
    """A justified use of a banned word: sentences of `path` that contain `words` are accepted."""

    path: str
    words: str
    reason: str


def main(arguments: Sequence[str]) -> int:
    """Print the findings of the given files and folders, or of the whole repository.

    Args:
        arguments: Absolute paths, or paths relative to the working directory. Todo entries are checked, too.

    Returns:
        The exit code: 1 if there is a finding, else 0.
    """
    paths = files([Path(each).resolve() for each in arguments])
    findings = check(paths)
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
    folders = Counter(str(Path(finding.path).parent) for finding in findings)
    for folder, count in sorted(folders.items()):
        sys.stdout.write(f"{count:6} {folder}\n")
    sys.stdout.write(f"{len(findings):6} in all\n")
    return 1 if findings else 0


def files(paths: Sequence[Path] = ()) -> list[Path]:
    """Return the files to check under `paths`, or in the whole repository. Prompts of agents are not checked."""
    found: list[Path] = []
    for path in paths:
        found += [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")]
    if not paths:
        found += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        found += [file for source in SOURCES for file in (ROOT / source).rglob("*.py")]
    return sorted({file for file in found if not _is_excluded(file)})


def _is_excluded(file: Path) -> bool:
    relative = _relative(file)
    is_prompt = file.suffix == ".md" and relative.startswith("agents/")
    return ".venv" in file.parts or is_prompt or relative in GENERATED


def check(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings in `paths` without an allowance, sorted by path and line."""
    paths = list(paths)
    found = [finding for path in paths for finding in check_file(path)]
    names = {_relative(path) for path in paths}
    found += [Finding(*each) for each in incomplete_docstrings(ROOT) if each[0] in names]
    granted = allowances()
    return [
        finding
        for finding in sorted(found, key=lambda each: (each.path, each.line, each.rule))
        if not any(each.path == finding.path and each.words in finding.sentence for each in granted)
    ]


def check_file(path: Path) -> list[Finding]:
    """Return all findings in one file, also those with an allowance."""
    source = path.read_text(encoding="utf-8")
    relative = _relative(path)
    texts = texts_of(path)
    found = [Finding(relative, line, rule, sentence) for text in texts for line, rule, sentence in check_text(text)]
    if relative.startswith("schemas/") and path.suffix == ".py":
        for line, name in undescribed_fields(source, _models(path.parent)):
            found.append(Finding(relative, line, "field-description", name))
    return sorted(set(found), key=lambda finding: (finding.line, finding.rule))


def texts_of(path: Path) -> list[Text]:
    """Return the docstrings, comments and messages of a module, or the paragraphs of a document."""
    source = path.read_text(encoding="utf-8")
    return [*_python(ast.parse(source)), *_comments(source)] if path.suffix == ".py" else [*_markdown(source)]


def check_text(text: Text) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the rule and the sentence for each broken rule in `text`."""
    first = True
    for offset, sentence in _sentences(text):
        line = text.line + text.text.count("\n", 0, offset)
        shown = " ".join(text.text[offset : offset + len(sentence)].split())
        plain = " ".join(sentence.split())
        if not plain.rstrip("*_\"')").endswith("?"):
            in_table = text.text.rfind("|", text.text.rfind("\n", 0, offset) + 1, offset) >= 0
            for rule in _openings(plain, text.kind, first=first, in_table=in_table):
                yield line, rule, shown
        for each in banned() if _any_banned().search(plain) else ():
            if (hit := each.pattern.search(plain)) and not (each.of_persons and _of_a_person(plain, hit)):
                yield line, f'"{" ".join(hit.group().split())}" -> {each.instead}', shown
        first = False


def _openings(sentence: str, kind: str, *, first: bool, in_table: bool) -> Iterator[str]:
    """Yield the names of the rules that the beginning of a sentence breaks."""
    opening = sentence.lstrip("*_\"'( ")
    if kind == "heading":
        if _QUESTION.match(opening) and not _HEADING_ALLOWED.match(opening):
            yield "indirect-question"
        return
    if kind == "header-cell":
        return
    if _QUESTION.match(opening):
        if not _QUESTION_ALLOWED.match(opening):
            yield "indirect-question"
    elif _CLAUSE.match(opening):
        if not (in_table or _has_main_clause(opening)):
            yield "no-main-clause"
    elif _INVERTED.match(opening):
        yield "inverted"
    if first and kind == "function" and not _is_imperative(opening):
        yield "not-verb-object"
    elif first and kind in ("function", "docstring", "attribute") and _PRONOUN.match(opening):
        yield "pronoun-first"


def _has_main_clause(sentence: str) -> bool:
    """Return True if the words after a comma of the sentence can be a main clause."""
    parts = re.split(r",\s+", re.split(r"[:;]\s", sentence)[0])
    for part in parts[1:]:
        words = part.split()
        if len(words) >= 2 and (not _NO_CLAUSE.match(part) or len(words) >= 6):
            return True
    return False


def _is_imperative(sentence: str) -> bool:
    word = sentence.split(maxsplit=1)[0].rstrip(".,:;") if sentence.strip() else ""
    if not word or not word[0].isalpha() or _NOT_A_VERB.match(sentence):
        return False
    if len(word) > 1 and word.isupper():
        return False
    return not word.endswith("s") or word.endswith(("ss", "us", "is"))


def _of_a_person(sentence: str, hit: re.Match[str]) -> bool:
    words = re.findall(r"[\w'-]+", sentence[: hit.start()])
    return any(_PERSON.match(word) for word in words[-4:])


def _sentences(text: Text) -> Iterator[tuple[int, str]]:
    """Yield each sentence and its offset. Code in a sentence is masked, so the rules do not match names."""
    masked = _CODE.sub(_masked, text.text)
    for start, unit in _units(masked, text.kind):
        position = 0
        while position < len(unit):
            end = _END.search(unit, position)
            stop = end.end() if end else len(unit)
            sentence = unit[position:stop]
            if stripped := sentence.strip():
                yield start + position + (len(sentence) - len(sentence.lstrip())), stripped
            position = stop


def _masked(match: re.Match[str]) -> str:
    code = match.group()
    if code.startswith("]("):
        return "]" + " " * (len(code) - 1)
    return "`" + "".join("\n" if each == "\n" else "_" for each in code[1:-1]) + "`" if len(code) > 1 else code


def _units(text: str, kind: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list items and section entries, each with its offset. Blocks of code are omitted."""
    start, unit = 0, ""
    offset = 0
    skip_deeper_than = -1
    fenced = False
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip())
        body = line.strip()
        begins = 0
        if body.startswith(("```", "~~~")):
            fenced, body = not fenced, ""
        elif fenced or body.startswith((">>>", "...")) or (body and 0 <= skip_deeper_than < indent):
            body = ""
        elif body:
            skip_deeper_than = -1
        cut = not body
        if body and kind != "comment" and (section := _SECTION.match(line)):
            if section[1].startswith("Example"):
                skip_deeper_than = indent
            cut, body = True, ""
        if body.startswith("|"):
            if unit:
                yield start, unit
                unit = ""
            yield from _cells(line, offset)
            cut, body = True, ""
        if body and (bullet := _BULLET.match(line[indent:])):
            cut, begins = True, indent + bullet.end()
        elif body and indent and (entry := _ENTRY.match(line[indent:])) and kind in ("function", "docstring"):
            cut, begins = True, indent + entry.end()
        if cut:
            if unit:
                yield start, unit
            start, unit = offset + begins, line[begins:] if body else ""
        else:
            if not unit:
                start = offset
            unit += line
        if body.endswith("::"):
            skip_deeper_than = indent
        offset += len(line)
    if unit:
        yield start, unit


def _cells(line: str, offset: int) -> Iterator[tuple[int, str]]:
    if not re.fullmatch(r"[\s|:-]+", line):
        for cell in re.finditer(r"[^|\n]+", line):
            yield offset + cell.start(), cell.group()


def _python(tree: ast.Module) -> Iterator[Text]:
    """Yield docstrings, docstrings of attributes, help texts, descriptions and error messages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if node.body else None
            for before, each in zip([None, *node.body], node.body, strict=False):
                if not _is_text(each):
                    continue
                assert isinstance(each, ast.Expr)
                if each is docstring:
                    yield _text(each.value, _docstring_kind(node))
                elif isinstance(before, ast.Assign | ast.AnnAssign):
                    yield _text(each.value, "attribute")
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (_text(each, "error") for each in node.exc.args if _is_string(each))
        elif isinstance(node, ast.Call):
            described = ast.unparse(node.func).rpartition(".")[2] in _DESCRIBED_CALLS
            names = _TEXT_KEYWORDS | ({"description", "summary"} if described else set())
            for keyword in node.keywords:
                if keyword.arg in names and _is_string(keyword.value):
                    yield _text(keyword.value, "help")
            if isinstance(node.func, ast.Name) and node.func.id in _TEXT_CALLS:
                yield from (_text(each, "help") for each in node.args if _is_sentence(each))


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_sentence(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and _is_string(node.value)


def _docstring_kind(node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "docstring"
    marks = " ".join(map(ast.unparse, node.decorator_list))
    return "docstring" if "property" in marks else "function"


def _text(node: ast.expr, kind: str) -> Text:
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else _PLACEHOLDER for part in node.values]
        return Text("".join(map(str, parts)), node.lineno, kind)
    assert isinstance(node, ast.Constant)
    return Text(str(node.value), node.lineno, kind)


def _comments(source: str) -> Iterator[Text]:
    """Yield the comments. Comments on consecutive lines form one text."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#!:").strip()
        if re.match(r"(?:type|noqa|pragma|fmt|pyright|ruff|mypy)\b:?", text):
            continue
        row, column = token.start
        alone = not token.line[:column].strip()
        if lines and alone and row == last + 1:
            lines.append(text)
        else:
            if lines:
                yield Text("\n".join(lines), first, "comment")
            lines, first = [text], row
        last = row
    if lines:
        yield Text("\n".join(lines), first, "comment")


def _markdown(source: str) -> Iterator[Text]:
    """Yield the headings, the tables and all other text outside blocks of code."""
    source = re.sub(r"^(```|~~~).*?^\1", lambda block: "\n" * block.group().count("\n"), source, flags=re.DOTALL | re.M)
    source = re.sub(r"<!--.*?-->", lambda block: "\n" * block.group().count("\n"), source, flags=re.DOTALL)
    lines = source.splitlines()
    prose: list[str] = []
    for number, line in enumerate(lines, 1):
        following = lines[number] if number < len(lines) else ""
        if line.startswith("#"):
            yield Text(line.lstrip("# "), number, "heading")
            prose.append("")
        elif line.startswith("|") and re.fullmatch(r"[\s|:-]+", following) and following.startswith("|"):
            yield Text(line, number, "header-cell")
            prose.append("")
        else:
            prose.append(line)
    yield Text("\n".join(prose), 1, "prose")


def undescribed_fields(source: str, models: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each field of the classes `models` without `Field(description=...)`."""
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.ClassDef) and node.name in models):
            continue
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                private = each.target.id.startswith("_") or each.target.id == "model_config"
                if not private and "ClassVar" not in ast.unparse(each.annotation) and not _is_described(each):
                    yield each.lineno, f"{node.name}.{each.target.id}"


def _is_described(field: ast.AnnAssign) -> bool:
    return any(
        isinstance(each, ast.Call)
        and ast.unparse(each.func) == "Field"
        and any(keyword.arg == "description" for keyword in each.keywords)
        for part in (field.annotation, field.value)
        if part is not None
        for each in ast.walk(part)
    )


@cache
def _models(folder: Path) -> set[str]:
    """Return the names of the classes in `folder` that inherit from pydantic's `BaseModel`."""
    bases: dict[str, set[str]] = {}
    for file in folder.glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    found = {"BaseModel"}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found


@cache
def banned() -> list[Banned]:
    """Return the banned words."""
    found = []
    for words, instead, *of_persons in _rows():
        if words != "allow":
            found.append(Banned(_of_words(_with_spaces(words)), instead, of_persons == ["person"]))
    return found


@cache
def _any_banned() -> re.Pattern[str]:
    """Return one pattern for all banned words, because most sentences have none and are then searched only once."""
    return _of_words("|".join(_with_spaces(words) for words, *_ in _rows() if words != "allow"))


def _with_spaces(words: str) -> str:
    return re.sub(r"\s+", r"\\s+", words)


def _of_words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w`/.-])(?:{pattern})(?![\w`]|-\w)", re.IGNORECASE)


def allowances() -> list[Allowance]:
    """Return the justified uses of banned words."""
    return [Allowance(*row[1:]) for row in _rows() if row[0] == "allow"]


def _rows() -> Iterator[list[str]]:
    for line in BANNED_FILE.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield [each.strip() for each in line.split("\t")]


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
