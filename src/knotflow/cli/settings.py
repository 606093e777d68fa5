"""Settings of a command in a TOML file: read with ``--config``, written in full by every run.

A key is the name of an option without the leading dashes, or of an argument, with dashes or underscores:

    data = "data/ala2.h5"
    out = "runs/ala2"
    reverse-kl = 0.1

A file replaces defaults, so options on the command line win.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer

from knotflow import __version__
from knotflow.errors import ConfigError
from knotflow.files import write_atomically

NO_SETTINGS: Final = frozenset({"config", "json", "quiet"})
"""Options that say how to run a command, not what to do."""
MARK: Final = "# All settings of a run, written by knotflow"
"""The first line of our own files, which may be replaced."""


def load(command: Any, file: Path) -> dict[str, Any]:
    """Values in a file, by the names of the parameters of a command.

    Raises:
        ConfigError: names the file, the key, and what is allowed.
        OSError: if the file cannot be read.
    """
    from pydantic import Field, create_model

    from knotflow.config import Config

    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no settings file {file}.") from None
    except OSError as error:
        raise OSError(f"the settings file {file} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise ConfigError(
            f'{file} is not TOML ({error}); lines must look like seed = 1 or out = "runs/a".'
        ) from None
    signature = inspect.signature(command.callback, eval_str=True)
    fields: dict[str, Any] = {}
    for key, parameter in keys(command).items():
        kind, about = get_args(signature.parameters[parameter.name].annotation)[:2]
        fields[key] = (_toml_type(kind) | None, Field(default=None, ge=about.min, le=about.max))
    model = create_model("Settings", __base__=Config, **fields)
    try:
        parsed = model.parse({key.replace("_", "-"): value for key, value in found.items()})
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    values = ((parameter.name, getattr(parsed, key)) for key, parameter in keys(command).items())
    return {name: value for name, value in values if value is not None}


def keys(command: Any) -> dict[str, Any]:
    """Parameters of a command by their keys."""
    named = ((_key(parameter), parameter) for parameter in command.params if parameter.expose_value)
    return {key: parameter for key, parameter in named if key not in NO_SETTINGS}


def _key(parameter: Any) -> str:
    options = [option[2:] for option in parameter.opts if option.startswith("--")]
    return options[0] if options else str(parameter.name).replace("_", "-")


def _toml_type(kind: Any) -> Any:
    """The type of a value in a file that stands for a value of a command."""
    from pydantic import BeforeValidator

    if kind is Path:
        return str
    if isinstance(kind, type) and issubclass(kind, Enum):
        allowed: Any = Literal[tuple(member.value for member in kind)]
        return Annotated[allowed, BeforeValidator(lambda value: _member(kind, value))]
    if get_origin(kind) is list:
        return list[_toml_type(get_args(kind)[0])]  # type: ignore[misc]
    inner = [inner for inner in get_args(kind) if inner is not type(None)]
    return _toml_type(inner[0]) | None if inner else kind


def _member(kind: type[Enum], value: Any) -> Any:
    """The value of the member that a value stands for, which may have had another name."""
    with suppress(ValueError):
        return kind(value).value
    return value


def _read(ctx: typer.Context, config: Path | None) -> Path | None:
    """Replace defaults with the values of a file."""
    if config is not None and not ctx.resilient_parsing:
        ctx.default_map = load(ctx.command, config)
    return config


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        show_default=False,
        metavar="FILE.toml",
        rich_help_panel="Settings",
        help="Read options and arguments from a file, such as every run writes; those given here win.",
    ),
]


def text(command_path: str, settings: Mapping[str, Any]) -> str:
    """The content of a file with these settings by key; None: not given."""
    lines = [
        f"{MARK} {__version__}.",
        f"# To run it again: {command_path} --config THIS_FILE. Paths are relative to the working folder.",
    ]
    for key, value in settings.items():
        lines.append(f"# {key} is not given" if _absent(value) else f"{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and not value)


def _toml(value: Any) -> str:
    """A value in TOML, exactly."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    word = str(value.value if isinstance(value, Enum) else value)
    # JSON escapes as TOML does, but for DEL.
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")


def _settings(ctx: typer.Context) -> dict[str, Any]:
    return {key: ctx.params[parameter.name] for key, parameter in keys(ctx.command).items()}


def keep(ctx: typer.Context, file: Path) -> None:
    """Write all settings of the command to a file; one that says the same already stays as it is.

    Raises:
        FileExistsError: if there is such a file that knotflow did not write.
    """
    if not _is_kept(ctx, file):
        write_atomically(file, text(ctx.command_path, _settings(ctx)).encode())


def _is_kept(ctx: typer.Context, file: Path) -> bool:
    """Whether a file says the same; refuses to replace what may be precious."""
    if not file.exists():
        return False
    content = file.read_text(encoding="utf-8", errors="replace")
    if content.startswith(MARK):
        return content == text(ctx.command_path, _settings(ctx))
    raise FileExistsError(
        f"the settings of this run go to {file}, but knotflow did not write that file; rename it."
    )


@contextmanager
def kept(ctx: typer.Context, file: Path, *, resumable: bool = True) -> Iterator[None]:
    """Write all settings at the end of a run; not if it was refused or failed.

    Args:
        ctx: The command as it was called.
        file: Where to.
        resumable: Whether a stopped run can be continued, and so leaves its settings.
    """
    _is_kept(ctx, file)  # refuse now, not after the run
    try:
        yield
    except (KeyboardInterrupt, SystemExit, typer.Exit):
        if resumable and file.parent.is_dir():  # otherwise it was stopped before it had begun
            keep(ctx, file)
        raise
    keep(ctx, file)


def beside(file: Path) -> Path:
    """Where the settings go of a run that makes a file."""
    return file.with_name(f"{file.name}.toml")
