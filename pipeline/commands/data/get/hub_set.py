"""Download a data set of the Hugging Face hub at one commit: resumable, each byte checked, without code."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.commands.data.get.address import OnHub, need_plain_name
from pipeline.commands.data.get.choice import Choice, Repository
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError
from pipeline.core.hub import Refused, fetch_file, hub_client, hub_errors, is_damaged
from pipeline.core.publish import need_disk
from pipeline.core.sources import Source, said_license
from pipeline.core.text import plural, safe
from pipeline.core.units import size_text

CARD = "README.md"
SHOWN = 5  # files in a sentence


@dataclass(frozen=True)
class HubSet:
    """Data set at the commit that its address names, or at the current one."""

    address: OnHub
    commit: str
    listing: list[Any]  # the hub's list of files, with sizes and hashes

    @property
    def repository(self) -> str:
        """Return OWNER/NAME."""
        return self.address.repository

    def card(self, cache: Path) -> dict[str, Any]:
        """Return the metadata of the data set's card. It is empty if there is no card. Raises `DataError` if
        it is not YAML.
        """
        import yaml
        from huggingface_hub.repocard import metadata_load

        listed = next((file for file in self.listing if file.rfilename == CARD), None)
        if listed is None:
            return {}
        self.fetch([listed], cache)
        try:
            return metadata_load(cache / CARD) or {}
        except (ValueError, yaml.YAMLError) as error:
            raise DataError(
                "Q-GET-007",
                f"{self.repository}: the metadata of its card is no YAML ({type(error).__name__}): take a "
                "commit whose card is right, or fetch its files by their https:// addresses",
            ) from error

    def chosen(self, choice: Choice) -> list[Any]:
        """Return the listed files of a choice, the smallest first.

        Raises `ConfigError` for a name outside of the folder.
        """
        for name in choice.files:
            need_plain_name(name, f"a file of {self.repository}")
        wanted = set(choice.files)
        return sorted(
            (file for file in self.listing if file.rfilename in wanted),
            key=lambda file: (file.size or 0, file.rfilename),
        )

    def fetch(self, files: list[Any], cache: Path) -> None:
        """Download files into `cache`. Raises `DataError` for one that differs from the hub's list."""
        for file in files:
            with hub_errors(_error_of(self.address)):
                fetch_file(self.repository, self.commit, file, cache, "dataset")
            arrived = cache / file.rfilename
            if is_damaged(arrived, file):
                arrived.unlink()
                raise DataError(
                    "Q-GET-009",
                    f"{self.repository}: {file.rfilename} did not arrive as the hub lists it: run the same "
                    "command again to fetch it again",
                )


def found_set(address: OnHub) -> HubSet:
    """Find a data set on the hub. Raises `DataError` if it does not exist or may not be read, and
    `MachineError` if the hub does not answer.
    """
    with hub_errors(_error_of(address)):
        api, timeout = hub_client()
        info = api.dataset_info(
            address.repository, revision=address.revision, files_metadata=True, timeout=timeout
        )
    return HubSet(address, info.sha, info.siblings or [])


def fetch_set(hub_set: HubSet, config: str | None, split: str, cache: Path) -> Source:
    """Download the files of a config and a split into `cache`.

    Return their source; its time and hashes are not known yet.
    """
    card = hub_set.card(cache)
    names = [file.rfilename for file in hub_set.listing]
    choice = Repository(hub_set.repository, names, card).choose(config, split)
    wanted = hub_set.chosen(choice)
    others = [name for name in names if name not in choice.files]
    size = sum(file.size or 0 for file in wanted)
    missing = sum((file.size or 0) - _arrived(cache, file.rfilename) for file in wanted)
    what = f"split {choice.split}"
    if choice.config:
        what = f"config {choice.config}, {what}"
    print(
        f"get: {hub_set.repository} at {hub_set.commit}, {what}: {plural(len(wanted), 'file')}, "
        f"{size_text(size)}, of which {size_text(missing)} to fetch",
        flush=True,
    )
    if others:
        more = ", …" if len(others) > SHOWN else ""
        shown = safe(", ".join(others[:SHOWN]) + more, 300)
        print(f"get: {plural(len(others), 'other file')} not fetched: {shown}", flush=True)
    if choice.unused:
        print(f"get: the card's {', '.join(map(safe, choice.unused))} for this config: not used", flush=True)
    need_disk(cache, missing)
    hub_set.fetch(wanted, cache)
    return Source(
        address=hub_set.repository,
        revision=hub_set.commit,
        config=choice.config,
        split=choice.split,
        license=said_license(card),
        columns=_columns(card, choice.config),
        files={file.rfilename: {"bytes": file.size} for file in wanted},
        left_out=len(others),
        fetched="",
    )


def _arrived(cache: Path, name: str) -> int:
    """Return the number of bytes of a file that have arrived already."""
    paths = (cache / name, cache / f"{name}.part")
    return next((path.stat().st_size for path in paths if path.exists()), 0)


def _columns(card: dict[str, Any], config: str | None) -> list[str]:
    """Return the names of the columns that the card lists for a config."""
    described = card.get("dataset_info") or []
    infos = described if isinstance(described, list) else [described]
    for info in infos:
        if isinstance(info, dict) and (len(infos) == 1 or info.get("config_name") == config):
            features = [feature for feature in info.get("features") or [] if isinstance(feature, dict)]
            return [str(feature["name"]) for feature in features if feature.get("name")]
    return []


def _error_of(address: OnHub) -> Callable[[Refused, str], QuenchError]:
    """Return what makes the error for the user of the hub's refusal of a data set."""
    name = address.repository

    def error_of(refused: Refused, reason: str) -> QuenchError:
        match refused:
            case Refused.NAME:
                return ConfigError("Q-GET-001", f"{name} is no name of a data set: write OWNER/NAME")
            case Refused.GATED:
                return DataError(
                    "Q-GET-010",
                    f"{name} is gated: accept its terms on its page on the hub, and set HF_TOKEN to a token "
                    "that may read it",
                )
            case Refused.REVISION:
                return DataError(
                    "Q-GET-008",
                    f"{name} has no commit, branch or tag {safe(str(address.revision))}: copy one from its "
                    "page on the hub",
                )
            case Refused.MISSING:
                return DataError(
                    "Q-GET-011",
                    f"the hub shows no data set {name}: correct the name, or set HF_TOKEN to a token that "
                    "may read it if it is private",
                )
            case Refused.BUSY:
                return MachineError(
                    "Q-GET-012",
                    f"the hub asks to wait before {name} is fetched (429): run the same command again later",
                )
        return MachineError(
            "Q-GET-013",
            f"{name} can't be fetched from the hub ({reason}): check the network and HF_ENDPOINT, then run "
            "the same command again; it resumes where it stopped",
        )

    return error_of
