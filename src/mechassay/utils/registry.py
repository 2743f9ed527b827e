"""Names that load at first use: names of plug-ins, and public names of packages.

A `Registry` maps a name to a lazy "module:object" string. Other packages add entries through
entry points in the group `mechassay.<kind>s`, for example
`[project.entry-points."mechassay.methods"]`; a built-in name cannot be replaced that way. A
plug-in is a frozen dataclass, so it can be typed with its settings:
"name:field=value,field=value".

`lazy_exports` makes the public names of a package load at first use. A package writes each name
once, as an import that type checkers read and that the loader reads too:

    if TYPE_CHECKING:
        from mechassay.features.sae import SAE as SAE

    __all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mechassay.errors import BadUsage, UnknownName
from mechassay.utils.arguments import fitted, hints_of, is_allowed
from mechassay.utils.files import load_yaml

_BETWEEN_SETTINGS = re.compile(r",(?![^()]*\))")
_SPELLING = re.compile(r"(?P<name>[\w.-]+)(?::(?P<args>.+))?")


@dataclass(frozen=True)
class Registry:
    """The known names of one kind of plug-in ("method", "task", ...)."""

    kind: str
    built_in: Mapping[str, str] = field(default_factory=dict)
    plural: str = ""

    def targets(self) -> dict[str, str]:
        """All names with the "module:object" they stand for; built-in ones win."""
        points = entry_points(group=f"mechassay.{self.plural or self.kind + 's'}")
        return {**{point.name: point.value for point in points}, **self.built_in}

    def __contains__(self, name: object) -> bool:
        # Entry points are in files of all installed packages, which are read at every call.
        return name in self.built_in or name in self.targets()

    def names(self) -> list[str]:
        """All known names, sorted."""
        return sorted(self.targets())

    def full_name(self, text: str) -> str:
        """Return the registered name for a typed name; settings behind the name are kept.

        `aliases.yaml` has other names of the field. Case and underscores do not count. An unknown
        name is returned unchanged.
        """
        name, colon, rest = text.strip().partition(":")
        if name in self.built_in or name in self.targets():
            return text
        plain = _plain(name)
        full = aliases(self.kind).get(plain) or {_plain(x): x for x in self.built_in}.get(plain)
        return text if full is None else f"{full}{colon}{rest}"

    def full_names(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return `full_name` of each text."""
        return tuple(map(self.full_name, texts))

    def other_names(self, name: str) -> list[str]:
        """Return the other names of the field for a registered name."""
        return sorted(alias for alias, full in aliases(self.kind).items() if full == name)

    def _unknown(self, name: str) -> UnknownName:
        return UnknownName(self.kind, name, self.targets(), meant=aliases(self.kind))

    def load(self, name: str) -> Any:
        """The object that `name` stands for.

        Raises:
            UnknownName: nobody registered `name`; the message has the nearest valid one.
        """
        name = self.full_name(name)
        target = self.built_in.get(name) or self.targets().get(name)
        if target is None:
            raise self._unknown(name)
        module, _, attribute = target.partition(":")
        return getattr(import_module(module), attribute)

    def check(self, text: str) -> None:
        """Refuse a text, with or without settings, that names nothing known; nothing is loaded.

        Raises:
            UnknownName: nobody registered the name; the message has the nearest valid one.
        """
        match = _SPELLING.fullmatch(self.full_name(text).strip())
        name = text if match is None else match["name"]
        if match is None or name not in self:
            raise self._unknown(name)

    def about(self, name: str) -> str:
        """What the plug-in's docstring says. See `load` for errors."""
        return inspect.getdoc(self.load(name)) or ""

    def settings(self, name: str) -> dict[str, Any]:
        """The plug-in's settings with their defaults. See `load` for errors."""
        return _defaults(self.load(name))

    def outline(self, name: str) -> tuple[str, dict[str, Any]]:
        """`about` and `settings` of a plug-in; a built-in one is read, and not imported.

        Its class has all its fields in its own body, or in that of a base in the same file, with
        defaults that are plain values, or one divided by another. See `load` for errors.
        """
        name = self.full_name(name)
        target = self.built_in.get(name)
        if target is None:
            return self.about(name), self.settings(name)
        module, _, attribute = target.partition(":")
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, f"{module} is one of this package"
        tree = ast.parse(Path(spec.origin).read_text("utf-8"))
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

        def fields(body: ast.ClassDef) -> dict[str, Any]:
            inherited: dict[str, Any] = {}
            for base in map(ast.unparse, body.bases):
                inherited |= fields(classes[base]) if base in classes else {}
            rows = [node for node in body.body if isinstance(node, ast.AnnAssign) and node.value]
            own = [row for row in rows if not ast.unparse(row.annotation).startswith("ClassVar")]
            return inherited | {ast.unparse(row.target): _constant(row.value) for row in own}

        return ast.get_docstring(classes[attribute]) or "", fields(classes[attribute])

    def make(self, text: str, **settings: Any) -> Any:
        """The plug-in `text` names, made with the settings written there and those given.

        Raises:
            UnknownName: no such plug-in or setting.
            BadUsage: a setting without a value, or one that its annotation does not allow.
        """
        match = _SPELLING.fullmatch(self.full_name(text).strip())
        if match is None:
            raise self._unknown(text)
        name = match["name"]
        plugin: Any = self.load(name)
        defaults = _defaults(plugin)
        given: dict[str, Any] = {}
        for part in _BETWEEN_SETTINGS.split(match["args"]) if match["args"] else ():
            key, equals, value = part.partition("=")
            if key in defaults and not equals:
                raise BadUsage(f"A setting is written {key}=VALUE; got {part!r}.")
            given[key] = value
        chosen = {**given, **settings}
        for key, value in chosen.items():
            if key not in defaults:
                raise UnknownName(f"setting of {name}", key, defaults)
            if key in given and key not in settings:
                chosen[key] = _value(value, hints_of(plugin)[key])
            chosen[key] = fitted(name, key, chosen, hints_of(plugin))
            if isinstance(defaults[key], float):
                # 100 and 100.0 are one setting, and one name in a table.
                chosen[key] = float(chosen[key])
        return plugin(**chosen)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


@cache
def aliases(kind: str) -> Mapping[str, str]:
    """Return other names of the field for plug-ins of a kind, each with the registered name."""
    text = files("mechassay.utils").joinpath("aliases.yaml").read_text("utf-8")
    return load_yaml(text).get(kind, {})


def _defaults(plugin: Any) -> dict[str, Any]:
    """The settings of a plug-in and their defaults; a plain callable has none."""
    known = fields(plugin) if is_dataclass(plugin) else ()
    return {option.name: option.default for option in known if option.init}


def _constant(node: ast.expr | None) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _constant(node.left) / _constant(node.right)
    assert node is not None, "a field of a plug-in has a default"
    return ast.literal_eval(node)


def _value(text: str, hint: Any) -> Any:
    """Return the value of a setting's text. One value is also a tuple: `exact:layers=-1`."""
    if is_allowed(text, hint):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    several = not is_allowed(value, hint) and is_allowed((value,), hint)
    return (value,) if several else value


def lazy_exports(
    package: str, file: str, *own: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, which import a name on first use.

    Args:
        package: name of the package, `__name__` in its `__init__.py`.
        file: path of its `__init__.py`, whose imports under `if TYPE_CHECKING` define the names.
        own: public names that the `__init__.py` defines itself.
    """
    tree = ast.parse(Path(file).read_text("utf-8"))
    where = {
        alias.name: str(node.module)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def getattribute(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = where[name]
        if module == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(module), name)

    names = sorted([*where, *own])
    return names, getattribute, lambda: names
