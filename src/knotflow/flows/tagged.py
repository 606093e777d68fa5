"""Dataclasses in configurations, as tables of their fields with a key that names the class.

Names, types and defaults of the fields are read from the dataclass. ``Interval(0.0, 2.0)`` is
``{"kind": "interval", "low": 0.0, "high": 2.0}`` in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import Field, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator, create_model

from knotflow.config import Config

Model = TypeVar("Model", bound=Config)


def model_of(
    cls: type, base: type[Model], tag: str, name: str, types: Mapping[type, Any], *, without: str = ""
) -> type[Model]:
    """The configuration class of a dataclass, with its fields and its name.

    Args:
        cls: The dataclass.
        base: Base class of the configuration.
        tag: Key that holds the name.
        name: The name.
        types: Replacements for types that pydantic cannot read.
        without: A field that is not part of the configuration.
    """
    hints = get_type_hints(cls)
    known: dict[str, Any] = {tag: (Literal[name], name)}
    for field in fields(cls):
        if field.init and field.name != without:
            parts = (hints[field.name], *get_args(hints[field.name]))
            kind = next((types[part] for part in parts if part in types), hints[field.name])
            known[field.name] = (kind, field.default)
    return create_model(cls.__name__, __base__=base, **known)


def tagged(tag: str, classes: Mapping[str, type]) -> Any:
    """The type of a field that holds an instance of one of these dataclasses; a table in files."""
    models = {name: model_of(cls, Config, tag, name, {}) for name, cls in classes.items()}
    names = {cls: name for name, cls in classes.items()}

    def read(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        if type(value) in names:
            return value
        found = dict(check(value))
        return classes[found.pop(tag)](**found)

    def write(value: Any) -> dict[str, Any]:
        return {tag: names[type(value)], **asdict(value)}

    any_model: Any = reduce(or_, models.values())
    return Annotated[any_model, Field(discriminator=tag), WrapValidator(read), PlainSerializer(write)]
