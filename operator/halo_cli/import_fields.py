"""Maps JSON objects onto the API's models, key by key: what a model knows under its JSON name, the rest kept in its place."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

from halo_api.grpo_reward import ToolEnvironment, Verifier
from halo_cli.kubectl import CliError, Object

# Where start_grpo_run's body is snake_case.
SNAKE_CASE: tuple[type[BaseModel], ...] = (ToolEnvironment, Verifier)


def fields(model: type[BaseModel], body: Object, unknown: Object, path: tuple[str, ...], snake: bool) -> Object:
    """Return what a model knows of an object, under its JSON names; the rest goes to `unknown`, in its place."""
    found: Object = {}
    snake = snake or model in SNAKE_CASE
    for key, value in body.items():
        attribute = attribute_of(model, key, snake)
        if attribute is None:
            keep(unknown, (*path, key), value)
        elif value is not None:
            name = model.model_fields[attribute].alias or attribute
            put(found, name, mapped(model, attribute, value, unknown, (*path, key), snake), ".".join((*path, key)))
    return found


def mapped(
    model: type[BaseModel], attribute: str, value: Any, unknown: Object, path: tuple[str, ...], snake: bool
) -> Any:
    """Return a field's value, with the names of the objects inside it mapped too."""
    inner = model_in(model.model_fields[attribute].annotation) if attribute in model.model_fields else None
    if inner is None:
        return value
    if isinstance(value, dict):
        return fields(inner, value, unknown, path, snake)
    if isinstance(value, list):
        return [
            fields(inner, item, unknown, (*path, str(i)), snake) if isinstance(item, dict) else item
            for i, item in enumerate(value)
        ]
    return value


def attribute_of(model: type[BaseModel], key: str, snake: bool) -> str | None:
    """Return the attribute that a JSON key means."""
    for attribute, info in model.model_fields.items():
        if key == (info.alias or attribute) or (snake and key == attribute):
            return attribute
    return None


def alias_of(model: type[BaseModel], key: str) -> str | None:
    """Return the JSON name of a field that is given by its snake_case name, or by its own."""
    attribute = attribute_of(model, key, True)
    return None if attribute is None else model.model_fields[attribute].alias or attribute


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field holds, alone, optionally or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    arguments = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return next((found for argument in arguments if (found := model_in(argument))), None)


def put(into: Object, name: str, value: Any, path: str) -> None:
    """Set a field once: a body that says it twice and differently can't be right."""
    if name in into and into[name] != value:
        raise CliError(f"{path}: found {value!r} after {into[name]!r} for {name}; keep one of them")
    into[name] = value


def keep(unknown: Object, path: tuple[str, ...], value: Any) -> None:
    """Keep a value at its place."""
    for step in path[:-1]:
        unknown = unknown.setdefault(step, {})
    unknown[path[-1]] = value
