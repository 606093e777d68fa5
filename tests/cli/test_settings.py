"""Settings in files: the round trip for every command that has them, what wins, refusals, files that stay."""

import inspect
import tomllib
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from knotflow.cli import app, settings
from knotflow.cli.settings import MARK, ConfigOption, beside, keep, kept, keys, load, text


def commands() -> dict[str, Any]:
    """All commands that take ``--config``, by name."""
    found: dict[str, Any] = {}

    def walk(command: Any, name: str) -> None:
        for word, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {word}")
        if any("--config" in parameter.opts for parameter in command.params):
            found[name] = command

    walk(typer.main.get_command(app), "knotflow")
    return found


COMMANDS = commands()
NASTY = ('new "folder"/ü\\x', "#[a]\t=\n", "plain.h5")


def annotation(command: Any, parameter: Any) -> Any:
    full = inspect.signature(command.callback, eval_str=True).parameters[parameter.name].annotation
    return get_args(full)[0]


def words(kind: Any, turn: int) -> list[str]:
    """Values for one parameter as given on a command line; another turn gives others."""
    if type(None) in get_args(kind):
        kind = next(inner for inner in get_args(kind) if inner is not type(None))
    if get_origin(kind) is list:
        return [words(get_args(kind)[0], turn + k)[0] for k in range(2)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        kind = Literal[tuple(member.value for member in kind)]
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return [choices[(turn + 1) % len(choices)]]
    return [{int: str(7 + turn), float: str(1 / (3 + turn))}.get(kind, NASTY[turn % len(NASTY)])]


def line(command: Any, turn: int, *, required: bool = False) -> list[str]:
    """A command line with all parameters, or with the required ones only."""
    options, arguments = [], []
    for parameter in keys(command).values():
        if required and not parameter.required:
            continue
        if parameter.param_type_name == "argument":
            arguments += words(annotation(command, parameter), turn)
        elif parameter.is_flag:
            options.append((parameter.secondary_opts or parameter.opts)[0] if turn else parameter.opts[0])
        else:
            for word in words(annotation(command, parameter), turn):
                options += [parameter.opts[0], word]
    return [*options, "--", *arguments]


def parsed(command: Any, arguments: list[str]) -> dict[str, Any]:
    """What the command would be called with."""
    params = command.make_context("command", arguments).params
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def write(command: Any, arguments: list[str], file: Path) -> dict[str, Any]:
    """Write the settings of a command line; return them."""
    params = parsed(command, arguments)
    found = {key: params[parameter.name] for key, parameter in keys(command).items()}
    file.write_text(text("knotflow", found), encoding="utf-8")
    return params


def test_the_commands_that_make_something_take_settings() -> None:
    made = {"simulate", "import", "train", "sample", "exact", "dynamics"}
    parts = ("all", "toy2d", "table1", "dynamics", "exact", "mixed5d", "engines", "field")
    made |= {f"reproduce {name}" for name in parts}
    assert set(COMMANDS) == {f"knotflow {name}" for name in made}


@pytest.mark.parametrize("name", COMMANDS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    command, file = COMMANDS[name], tmp_path / "a.toml"
    for turn, required in ((0, False), (1, False), (0, True)):
        expected = write(command, line(command, turn, required=required), file)
        assert parsed(command, ["--config", str(file)]) == {**expected, "config": file}
        # Every parameter is in the file, be it as a comment.
        content = file.read_text(encoding="utf-8")
        assert all(f"\n{key} = " in content or f"\n# {key} is not given" in content for key in keys(command))
        if not required:
            assert set(tomllib.loads(content)) == set(keys(command))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_line_wins(name: str, tmp_path: Path) -> None:
    command, file = COMMANDS[name], tmp_path / "a.toml"
    write(command, line(command, 0), file)
    other = line(command, 1)
    assert parsed(command, ["--config", str(file), *other]) == {**parsed(command, other), "config": file}
    # One option alone changes nothing else.
    seed = next((option for option in ("--seed", "--seeds") if option in other), None)
    if seed is not None:
        one = parsed(command, ["--config", str(file), seed, "77"])
        assert one == {**parsed(command, ["--config", str(file)]), seed[2:]: 77}


def test_dashes_and_underscores(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    for key in ("reverse-kl", "reverse_kl"):
        file.write_text(f'data = "a.h5"\n{key} = 2  # a whole number for a float\nno_such_thing_below = 1')
        with pytest.raises(
            ValueError, match="unknown key 'no-such-thing-below'; allowed here: batch, bins, "
        ):
            load(COMMANDS["knotflow train"], file)
        file.write_text(f'data = "a.h5"\n{key} = 2')
        assert load(COMMANDS["knotflow train"], file) == {"data": "a.h5", "reverse_kl": 2.0}


def test_the_old_name_of_a_family_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('data = "a.h5"\ntransform = "smooth"')
    assert load(COMMANDS["knotflow train"], file) == {"data": "a.h5", "transform": "bump"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("bin = 4", "a.toml: unknown key 'bin'; allowed here: batch, bins, compile, data, epochs,"),
        ('config = "b.toml"', "unknown key 'config'"),
        ("bins = 4.5", "a.toml: bins: input should be a valid integer, got 4.5."),
        ("bins = true", "a.toml: bins: input should be a valid integer, got True."),
        ("bins = 0", "a.toml: bins: input should be greater than or equal to 1, got 0."),
        ('bins = "4"', "a.toml: bins: input should be a valid integer, got '4'."),
        ("compile = 1", "a.toml: compile: input should be a valid boolean, got 1."),
        ("data = 1979-05-27", "a.toml: data: input should be a valid string, got datetime.date("),
        ('preset = "better"', "a.toml: preset: input should be 'best', 'quick' or 'paper', got 'better'."),
        ("[train]\nbins = 4", "a.toml: unknown key 'train'"),
        ("bins 4", "a.toml is not TOML (Expected '=' after a key"),
        ("order = 4", "Missing argument 'data'"),
    ],
)
def test_wrong_files_are_explained(run_here, tmp_path: Path, content: str, message: str) -> None:
    Path("a.toml").write_text(content)
    status, said = run_here("train", "--config", "a.toml")
    assert status == 2 and message in said, said
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_files_that_cannot_be_read(run_here, tmp_path: Path) -> None:
    Path("folder.toml").mkdir()
    Path("latin.toml").write_bytes('out = "ü"'.encode("latin-1"))
    for name, message in (
        ("none.toml", "there is no settings file none.toml."),
        ("folder.toml", "folder.toml must be a file, but is a folder"),
        ("latin.toml", "latin.toml is not TOML ('utf-8' codec can't decode"),
    ):
        status, said = run_here("train", "--config", name)
        assert status == 2 and message in said, said


values = st.one_of(
    st.text(st.characters(codec="utf-8")), st.integers(), st.floats(allow_nan=False), st.booleans()
)


@given(st.one_of(values, st.lists(st.text(st.characters(codec="utf-8")), min_size=1)))
def test_values_are_exact(value: Any) -> None:
    (found,) = tomllib.loads(text("knotflow", {"key": value})).values()
    assert found == value and type(found) is type(value)


def run_small(*arguments: str, end: BaseException | None = None, make: bool = True) -> BaseException | None:
    """A small command with settings in the folder ``run``, which ends as it is told."""
    small = typer.Typer()

    @small.command()
    def command(
        ctx: typer.Context,
        n: Annotated[int, typer.Option()] = 1,
        config: ConfigOption = None,
    ) -> None:
        with kept(ctx, Path("run/small.toml")):
            if make:
                Path("run").mkdir(exist_ok=True)
            if end is not None:
                raise end

    try:
        typer.main.get_command(small).main(list(arguments), standalone_mode=False)
    except BaseException as error:
        return error
    return None


def test_settings_are_kept_unless_the_run_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("run/small.toml")
    assert isinstance(run_small(end=ValueError("refused")), ValueError) and not file.exists()
    run_small("--n", "3", end=typer.Exit(130))
    assert tomllib.loads(file.read_text()) == {"n": 3}
    assert run_small("--n", "4") is None
    assert tomllib.loads(file.read_text()) == {"n": 4} and file.read_text().startswith(MARK)
    assert isinstance(run_small("--n", "5", end=OSError("no space")), OSError)
    assert tomllib.loads(file.read_text()) == {"n": 4}
    # The same again: the file is not touched.
    before = file.stat()
    assert run_small("--config", "run/small.toml") is None
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in Path("run").iterdir()] == ["small.toml"]


def test_nothing_is_kept_of_a_run_that_had_not_begun(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_small(end=typer.Exit(130), make=False)
    assert not Path("run").exists()


def test_a_file_of_the_user_is_not_replaced(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/small.toml").write_text("n = 2  # mine")
    error = run_small("--config", "run/small.toml", end=AssertionError("it has begun"))
    assert isinstance(error, FileExistsError) and "knotflow did not write that file; rename it." in str(error)
    assert Path("run/small.toml").read_text() == "n = 2  # mine"


def test_settings_of_a_file_are_beside_it(tmp_path: Path) -> None:
    context = COMMANDS["knotflow simulate"].make_context("simulate", ["--ns", "3"])
    keep(context, beside(tmp_path / "new" / "a.h5"))
    found = tomllib.loads((tmp_path / "new" / "a.h5.toml").read_text())
    assert found["ns"] == 3.0 and found["energy"] == "force-field" and "molecule" not in found
    assert not settings.NO_SETTINGS & set(found)
