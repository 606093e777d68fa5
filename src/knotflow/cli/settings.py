"""Settings of commands in TOML files: read by ``--config``, written in full by every run.

A key is the name of an option without the leading dashes, or the name of an argument. Dashes and underscores
mean the same:

    data = "data/ala2.h5"
    out = "runs/ala2"
    reverse-kl = 0.1

A file replaces the defaults; options on the command line replace both.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer

from knotflow import __version__
from knotflow.errors import ConfigError
from knotflow.files import read_file, write_atomically
from knotflow.transforms.families import RENAMED

NO_SETTINGS: Final = frozenset({"config", "json", "quiet"})
"""Options about how to run a command, not about what it does."""
RETIRED: Final = {"own-samples": "refine = true"}
"""Switches of earlier versions, and what to write instead; files have them as false, which is no setting."""
MARK: Final = "# All settings of a run, written by knotflow"
"""Start of the files that knotflow writes, and may replace."""


def load(command: Any, file: Path) -> dict[str, Any]:
    """The values in a file, by the parameter names of a command.

    Raises:
        ConfigError: names the file, the key, and what is allowed.
        OSError: if the file cannot be read.
    """
    from pydantic import Field, create_model

    from knotflow.config import Config

    try:
        found = tomllib.loads(read_file(file).decode())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no settings file {file}.") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, nested too deeply
        raise ConfigError(
            f'{file} is not TOML ({error}); lines must look like seed = 1 or out = "runs/a".'
        ) from None
    parameters, signature = keys(command), inspect.signature(command.callback, eval_str=True)
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        kind, about = get_args(signature.parameters[parameter.name].annotation)[:2]
        fields[key] = (_toml_type(kind) | None, Field(default=None, ge=about.min, le=about.max))
    model = create_model("Settings", __base__=Config, **fields)
    try:
        parsed = model.parse(_current({key.replace("_", "-"): value for key, value in found.items()}))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return {parameters[key].name: value for key, value in parsed if value is not None}


def _current(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values in a file, less switches of earlier versions that are off."""
    for key in RETIRED:
        if found.get(key):
            raise ConfigError(f"{key} was an option of an earlier version; now it is {RETIRED[key]}.")
    return {key: value for key, value in found.items() if key not in RETIRED}


def keys(command: Any) -> dict[str, Any]:
    """The parameters of a command that files may set, by key."""
    found = {}
    for parameter in command.params:
        names = [option[2:] for option in parameter.opts if option.startswith("--")]
        found[names[0] if names else parameter.name.replace("_", "-")] = parameter
    return {key: found[key] for key in found if found[key].expose_value and key not in NO_SETTINGS}


def _toml_type(kind: Any) -> Any:
    """The type in a file of values that have this type in a command."""
    from pydantic import BeforeValidator

    if kind is Path:
        return str
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Literal[tuple(member.value for member in kind)]
    if get_origin(kind) is Literal:
        # Older files may have an earlier name of a transform.
        old = {name: new for name, new in RENAMED.items() if new in get_args(kind)}
        return Annotated[kind, BeforeValidator(lambda name: old.get(str(name), name))]
    if get_origin(kind) is list:
        return list[_toml_type(get_args(kind)[0])]  # type: ignore[misc]
    inner = [inner for inner in get_args(kind) if inner is not type(None)]
    return _toml_type(inner[0]) | None if inner else kind


def _read(ctx: typer.Context, config: Path | None) -> Path | None:
    """Replace the defaults of a command by the values in a file."""
    if config is not None and not ctx.resilient_parsing:
        ctx.default_map = load(ctx.command, config)
    return config


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        metavar="FILE.toml",
        rich_help_panel="Settings",
        help="Read options and arguments from a file, such as the one that every run writes; what you give "
        "on the command line takes precedence.",
    ),
]


def text(command_path: str, settings: Mapping[str, Any], note: str = "") -> str:
    """The content of a settings file; settings that are None or empty, and a note, are comments."""
    lines = [
        f"{MARK} {__version__}.",
        f"# To run it again: {command_path} --config THIS_FILE. Paths are relative to the working folder.",
    ]
    for key, value in settings.items():
        is_given = value not in (None, [], ())
        lines.append(f"{key} = {_toml(value)}" if is_given else f"# {key} is not given")
    lines += [f"# {note}"] if note else []
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value in TOML, without loss."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    word = str(value.value if isinstance(value, Enum) else value)
    # JSON and TOML escape the same characters, except DEL.
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")


def keep(ctx: typer.Context, file: Path, note: str = "") -> None:
    """Write all settings of a command, and a note, to a file, unless it has the same content already.

    Raises:
        FileExistsError: if the file exists and knotflow did not write it.
    """
    content = _content(ctx, file, note)
    if content is not None:
        write_atomically(file, content.encode())


def _content(ctx: typer.Context, file: Path, note: str = "") -> str | None:
    """The content to write to a settings file; None if the file has it already."""
    found = read_file(file).decode(errors="replace") if file.exists() else MARK
    if not found.startswith(MARK):
        raise FileExistsError(
            f"the settings of this run go to {file}, but knotflow did not write that file; rename it."
        )
    settings = {key: ctx.params[parameter.name] for key, parameter in keys(ctx.command).items()}
    content = text(ctx.command_path, settings, note)
    return None if content == found else content


def are_in(ctx: typer.Context, file: Path, note: str) -> bool:
    """Whether a file has the settings of a command, and a note, as `keep` writes them."""
    return file.exists() and _content(ctx, file, note) is None


@contextmanager
def kept(ctx: typer.Context, file: Path) -> Iterator[None]:
    """Write all settings to a file when a run ends or is stopped, unless it was refused or failed.

    Args:
        ctx: The command as it was called.
        file: The settings file.
    """
    _content(ctx, file)  # refuse a file of the user now, not after the run
    try:
        yield
    except (KeyboardInterrupt, SystemExit, typer.Exit):
        if file.parent.is_dir():  # otherwise the run was stopped before it started
            keep(ctx, file)
        raise
    keep(ctx, file)


@contextmanager
def kept_first(ctx: typer.Context, file: Path, note: str = "") -> Iterator[None]:
    """Write all settings to a file before a run that cannot be continued; take them back if it fails.

    So whoever finds the result of the run finds its settings, too. For the arguments see `keep`.
    """
    before = read_file(file) if file.exists() else None
    keep(ctx, file, note)
    try:
        yield
    except BaseException:
        if before is None:
            file.unlink(missing_ok=True)
        else:
            write_atomically(file, before)
        raise


def beside(file: Path) -> Path:
    """The settings file of a run that writes a file."""
    return file.with_name(f"{file.name}.toml")
