"""Base class of configurations, which are checked before any work begins."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from knotflow.errors import ConfigError


class Config(BaseModel):
    """Base of all configurations: immutable, unknown keys are refused, nothing is converted silently.

    Use the constructor or, for the content of a file, `parse`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Make a configuration from plain dictionaries, lists, numbers and strings.

        Raises:
            ConfigError: names the first wrong key, its value and what is allowed.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(first_problem(error, cls)) from None

    def plain(self) -> dict[str, Any]:
        """The configuration as dictionaries, lists, numbers and strings: the inverse of `parse`."""
        return self.model_dump(mode="json")


def first_problem(error: Any, cls: type[BaseModel] = BaseModel) -> str:
    """An error of pydantic, in a model, as one sentence about the first problem."""
    problems = error.errors()
    more = f" ({len(problems) - 1} more such errors.)" if len(problems) > 1 else ""
    return _sentence(cls, problems[0]) + more


def _sentence(cls: type[BaseModel], problem: ErrorDetails) -> str:
    """An error of pydantic as one sentence."""
    path, models = _walk(cls, problem["loc"])
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        allowed = sorted({name for model in models for name in model.model_fields})
        return f"unknown key {key!r}; allowed here: {', '.join(allowed)}."
    if problem["type"] in ("union_tag_not_found", "model_type", "model_attributes_type", "dict_type"):
        return f"{key or cls.__name__}: expected a table of keys and values, got {problem['input']!r}."
    if problem["type"] == "missing":
        return f"{key} is missing; give it a value."
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    if problem["type"] == "value_error":
        return f"{key}: {message}." if key else f"{message}."
    return f"{key}: {message[0].lower()}{message[1:]}, got {problem['input']!r}."


def _walk(cls: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], list[type[BaseModel]]]:
    """The path of keys to an error, as the user wrote it, and the models that may contain the last key."""
    path: list[str] = []
    models, around = [cls], [cls]
    for step in loc:
        tagged = [model for model in models if step in _tags(model)]
        if tagged:
            # Not a key of the user, but the alternative of a union that pydantic chose.
            models = around = tagged
            continue
        path.append(str(step))
        if isinstance(step, str):
            around = models
            fields = [model.model_fields[step] for model in models if step in model.model_fields]
            models = [model for field in fields for model in _models(field.annotation)]
    return path, around


def _models(annotation: Any) -> list[type[BaseModel]]:
    """All models named in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _tags(model: type[BaseModel]) -> list[Any]:
    """Values of the literal fields, which distinguish the alternatives of a union."""
    literals = [f.annotation for f in model.model_fields.values() if get_origin(f.annotation) is Literal]
    return [value for literal in literals for value in get_args(literal)]
