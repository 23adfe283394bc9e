"""Install a recipe as `params.yaml`, and its graph of stages as `dvc.yaml`, without overwriting a user's
edits: `quench config use RECIPE`.

Reads `recipes/` (the changes of each recipe to the schema's defaults) and `graphs/`. Writes `params.yaml`
(the differences from the defaults), `params.lock.yaml` (all settings) and `dvc.yaml`. What the project set of
its own data (`OF_DATA`) stays. An edited file is one that differs from these in any other byte.
"""

import difflib
import re
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.config.overrides import Given, override, put
from pipeline.config.params import Params, load_params
from pipeline.config.params_text import value_at
from pipeline.config.products import PRODUCTS
from pipeline.core.errors import ConfigError, MachineError, QuenchError
from pipeline.core.places import resource
from pipeline.core.publish import publishing
from pipeline.core.text import listed
from pipeline.workflow.dvc_yaml import put_graph
from pipeline.workflow.project import is_project
from pipeline.workflow.state.settings import starting_text, write_lock

RECIPES = resource("recipes")
MOST_LETTERS = 40  # characters of a project's name in the names of its models
TITLE = "Recipe"  # beginning of the line that names a written file's recipe
# Settings that say how the files in data/raw are read, whatever the base.
OF_DATA = tuple(("curate", key) for key in ("formats", "documents", "fields", "transform", "source_weights"))


def recipe_names() -> list[str]:
    """Return the names that `quench config use` knows."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_file(recipe: str) -> Path:
    """Return the file of a recipe. Raises `ConfigError` if there is none of this name."""
    names = recipe_names()
    if recipe not in names:
        near = difflib.get_close_matches(recipe, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? The recipes are" if near else "the recipes are"
        raise ConfigError("Q-COMMANDS-002", f"no recipe is called {recipe!r}: {hint} {', '.join(names)}")
    return RECIPES / f"{recipe}.yaml"


def recipe_params(recipe: str, name: str | None = None) -> Params:
    """Return the recipe's settings. If `name` is given, they are those of a project with models of that name.

    A user's own project has answers of any kind, so it is not scored like the demo's rows, which are JSON.
    """
    params = load_params(recipe_file(recipe))
    if name is None:
        return params
    values = params.model_dump(mode="json")
    values["convert"]["name"] = name
    if recipe.startswith("demo"):
        values["evaluate"]["scorers"] = Params().evaluate.scorers
    return Params.model_validate(values)


def recipe_text(recipe: str, name: str | None = None) -> str:
    """Return the `params.yaml` that `quench config use` writes: the recipe's changes to the schema's
    defaults. In a project its models are called `name` (`recipe_params`).
    """
    file = recipe_file(recipe)
    purpose = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return starting_text(
        recipe_params(recipe, name),
        [
            f"{TITLE} {recipe}: {purpose}",
            "A key that is left out has its default. `quench config show` lists all, `quench config show "
            "KEY` says what one does; `quench config use RECIPE` writes another recipe here.",
        ],
    )


def settings_of_data(file: Path) -> Given:
    """Return what a params.yaml sets of its project's own data: the keys in `OF_DATA` with a value that no
    recipe has. Returns nothing if the file is missing or damaged.
    """
    try:
        values = load_params(file).model_dump(mode="json")
    except QuenchError:
        return {}
    of_recipes = [recipe_params(recipe).model_dump(mode="json") for recipe in recipe_names()]
    return {
        place: value_at(values, place)
        for place in OF_DATA
        if all(value_at(values, place) != value_at(recipe, place) for recipe in of_recipes)
    }


def _text_with(recipe: str, name: str | None, data: Given) -> bytes:
    """Return the `recipe_text` with these settings of data, as `quench data check --write` adds them."""
    text = recipe_text(recipe, name).encode()
    if not data:
        return text
    with TemporaryDirectory() as folder:
        file = Path(folder, "params.yaml")
        file.write_bytes(text)
        override(file, data)
        return file.read_bytes()


def use(recipe: str, root: Path, force: bool = False) -> str:
    """Install `recipe` as `root`/params.yaml, with the `settings_of_data` that are there. Print the changes
    as a unified diff and return that diff ("" if nothing changes).

    Raises `ConfigError` for an unknown recipe and, unless `force` is set, for a params.yaml with edits (the
    message contains the diff).
    """
    recipe_file(recipe)
    target = root / "params.yaml"
    name = name_in(root)
    data = settings_of_data(target)
    new = _text_with(recipe, name, data)
    try:
        old = target.read_bytes()
    except FileNotFoundError:
        old = None
    except OSError as error:
        raise MachineError(
            "Q-COMMANDS-004", f"{target} can't be read ({error.strerror}): correct its rights or move it away"
        ) from error
    changes = unified_diff(old or b"", new, str(target), f"recipe {recipe}")
    recipes = (_text_with(other, name, data) for other in recipe_names())
    stays = f" but {listed(['.'.join(place) for place in data])}" if data else ""
    if old is not None and not force and old not in recipes:
        raise ConfigError(
            "Q-COMMANDS-003",
            f"{target} has edits that are in no recipe: keep a copy, then `quench config use {recipe} "
            f"--force` replaces all of it{stays}:\n{changes}",
        )
    values = recipe_params(recipe, name).model_dump(mode="json")
    for place, value in data.items():
        put(values, place, value)
    params = Params.model_validate(values)
    changed = (root / "dvc.yaml").is_file() and put_graph(root, params)
    if old != new:
        with publishing(target) as aside:
            aside.write_bytes(new)
    write_lock(root, params)
    if changed:
        print(f"{root / 'dvc.yaml'} is the graph of {PRODUCTS[params.graph].plural} now")
    if changes:
        print(f"{changes}{target} is recipe {recipe} now")
    else:
        print(f"{target} is recipe {recipe} already")
    return changes


def name_in(root: Path) -> str | None:
    """Return the name of the models of a project that `quench new` made. Returns None in any other folder."""
    if not is_project(root):
        return None
    try:
        return load_params(root / "params.yaml").convert.name
    except QuenchError:  # It is missing or damaged, and is about to be written.
        return name_for(root.resolve().name)


def name_for(folder: str) -> str:
    """Return a folder's name as the name of models: a file name that is valid in any file system."""
    plain = unicodedata.normalize("NFKD", folder).encode("ascii", "ignore").decode()
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("._-")[:MOST_LETTERS].rstrip("._-")
    return safe or Params().convert.name


def graph(root: Path, cache_base: bool | None = None) -> None:
    """Write `root`/dvc.yaml as the graph that its params.yaml needs, after a setting that decides its stages
    was changed by hand, or after an update. If `cache_base` is True, DVC keeps the base's
    weights from now on. If it is False, DVC no longer does. None changes nothing about that.
    """
    params = load_params(root / "params.yaml")
    changed = put_graph(root, params, cache_base=cache_base)
    plural = PRODUCTS[params.graph].plural
    print(f"{root / 'dvc.yaml'} is the graph of {plural} {'now' if changed else 'already'}")
    if cache_base and changed:
        print("DVC keeps models/base from now on: `snakemake` puts it into DVC's cache, `dvc push` sends it")


def unified_diff(old: bytes, new: bytes, old_name: str, new_name: str) -> str:
    """Return the difference from `old` to `new` as `diff -u` writes it, or "" if they are equal."""
    before, after = (text.decode("utf-8", errors="replace").splitlines(keepends=True) for text in (old, new))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, old_name, new_name, n=1)
    )
