"""YAML read so that every value still knows where it stands: an error names file, line and field.

Nothing is constructed: values are nodes with marks, and whoever reads a field says what it has to be. So no tag can
make an object, and what aliases repeat costs nothing until a field asks for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import yaml

from sdrs_core.errors import InvalidArgumentError

MAX_FILE_CHARS = 128 << 10
MAX_DOCUMENTS = 100
MAX_ALIASES = 100
# Reading is slow: a file full of commas would take many seconds.
MAX_VALUES = 10_000
# The deepest field of a job file is at 4.
MAX_DEPTH = 16
_MOST_QUOTED_CHARS = 60

_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "timestamp", "merge", "value", "map", "seq")
}


@dataclass(frozen=True, slots=True)
class Place:
    """One value of a file: the node, and the path of fields that leads to it (empty: the document itself)."""

    source: str
    path: str
    node: yaml.Node

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    @property
    def is_null(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:null"

    @property
    def is_quoted(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.style is not None

    @property
    def text(self) -> str | None:
        """A scalar as it is written; None: it is a list or a mapping."""
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else None

    @property
    def words(self) -> str:
        """The value, for an error."""
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if self.text is None:
            return "a list"
        return "an empty value" if self.is_null else quoted(self.text)

    def wrong(self, what: str) -> InvalidArgumentError:
        return wrong(self.source, self.line, self.path, what)

    def items(self, most: int) -> list[Place]:
        """The entries of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong(f"{self.words} is not a list: give [one, two], or one per line after a dash")
        if len(self.node.value) > most:
            raise self.wrong(f"{len(self.node.value)} entries are too many: give at most {most}")
        return [Place(self.source, f"{self.path}[{index}]", node) for index, node in enumerate(self.node.value)]

    def fields(self, most: int) -> Iterator[tuple[str, Place, Place]]:
        """The entries of a mapping: name, where the name stands, and the value."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(f"{self.words} is not a mapping: give fields, as name: value")
        if len(self.node.value) > most:
            raise self.wrong(f"{len(self.node.value)} fields are too many: give at most {most}")
        lines: dict[str, int] = {}
        for key_node, node in self.node.value:
            key = Place(self.source, self.path, key_node)
            name = key.text
            if name is None or key.is_null:
                raise key.wrong(f"{key.words} is no name of a field: give text before the colon")
            path = f"{self.path}.{name}" if self.path else name
            key = Place(self.source, path, key_node)
            if name == "<<" and not key.is_quoted:
                raise key.wrong("fields of other mappings cannot be merged here: write them out")
            if name in lines:
                raise key.wrong(f"is given twice, first in line {lines[name]}: leave one out")
            lines[name] = key.line
            yield name, key, Place(self.source, path, node)


def quoted(text: str) -> str:
    """On one line, whatever is in it, and not too long."""
    cut = text if len(text) <= _MOST_QUOTED_CHARS else text[: _MOST_QUOTED_CHARS - 1] + "…"
    return '"' + "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut) + '"'


def wrong(source: str, line: int, path: str, what: str) -> InvalidArgumentError:
    # A name of a field is somebody's text, too.
    field = f"{quoted(path)[1:-1]}: " if path else ""
    return InvalidArgumentError(f"{source}:{line}: {field}{what}", source=source, line=line, field=path)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """``did you mean X?``, or what there is."""
    longer = [one for one in known if len(name) > 2 and one.startswith(name.lower())]
    near = longer or difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"give {one_of(known)}"


def one_of(known: Collection[str]) -> str:
    *first, last = known
    return f"{', '.join(first)} or {last}" if first else last


def read_documents(text: str, source: str) -> list[Place]:
    """The documents of a file, without the empty ones."""
    if len(text) > MAX_FILE_CHARS:
        raise wrong(source, 1, "", f"the file is larger than {MAX_FILE_CHARS >> 10} KiB: that is no job file")
    loader = _Loader(text, source)
    try:
        documents = []
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            place = Place(source, "", node)
            if not place.is_null:
                documents.append(place)
            if len(documents) > MAX_DOCUMENTS:
                raise place.wrong(f"more than {MAX_DOCUMENTS} jobs in one file: split it")
        return documents
    except yaml.MarkedYAMLError as error:
        raise _as_ours(error, source) from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        # PyYAML turns escapes and version numbers into numbers without a look at them.
        raise wrong(source, int(loader.line) + 1, "", "this is not YAML: a number or an escape is too large") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Bounds what a small file can ask for: depth, and repetition by aliases."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._depth = 0
        self._alias_count = 0
        self._value_count = 0
        try:
            super().__init__(text)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            found = chr(error.character) if isinstance(error.character, int) else error.character
            what = f"the character {found!a} does not belong into YAML: is this a text file?"
            raise wrong(source, line, "", what) from None

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        line = int(self.line) + 1
        if self.check_event(yaml.AliasEvent):
            self._alias_count += 1
            if self._alias_count > MAX_ALIASES:
                raise wrong(self._source, line, "", f"more than {MAX_ALIASES} aliases: write the values out")
        self._value_count += 1
        if self._value_count > MAX_VALUES:
            raise wrong(self._source, line, "", f"more than {MAX_VALUES} values: that is no job file")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise wrong(self._source, line, "", f"nested deeper than {MAX_DEPTH} levels: no field needs that")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and node.tag not in _PLAIN_TAGS:
            what = f"the tag {quoted(node.tag)} means nothing here: leave it out"
            raise wrong(self._source, int(node.start_mark.line) + 1, "", what)
        return node


def _as_ours(error: yaml.MarkedYAMLError, source: str) -> InvalidArgumentError:
    mark = error.problem_mark or error.context_mark
    line = int(mark.line) + 1 if mark is not None else 1
    problem = " ".join((error.problem or error.context or "it cannot be read").split())
    if "'\\t'" in problem:
        return wrong(source, line, "", "a tab: YAML is indented with spaces")
    hint = ": quote the value" if "mapping values are not allowed" in problem else ""
    return wrong(source, line, "", f"this is not YAML: {quoted(problem)[1:-1]}{hint}")
