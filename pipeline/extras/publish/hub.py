"""Push a bundle to a model repository on the Hugging Face hub, beside the levels that it has already.

    quench ship Q4_K_M --push OWNER/NAME
    quench ship Q5_K_M --push OWNER/NAME   # adds a level; the card lists both

The GGUF is at the top of the repository, the bundle's other files are in a folder named after the level.
Everything that a push changes is one commit, so that nobody sees half of it. The token is the one of
`hf auth login` or HF_TOKEN, which huggingface_hub reads itself: it is never printed or passed on.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError
from pipeline.core.hub import fetch_file, hub_client, is_damaged
from pipeline.core.text import plural, safe, shortened
from pipeline.extras.publish.hub_card import repository_card
from pipeline.extras.publish.shipped import Shipped, front_matter_of, known_license, read_bundle
from pipeline.ship.bundle import CARD, EVALUATION, SUMS
from pipeline.ship.listing import MAX_SMALL, SIGNATURE, read_small

READ = (CARD, SUMS, EVALUATION)  # what is read of a level that the repository has
LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token with the right to write"
DENIED = (401, 403)
CHANGED = 412  # status of a commit on something else than the branch's head


@dataclass(frozen=True)
class Repository:
    """A repository on the hub at one commit."""

    name: str
    commit: str
    private: bool
    files: Mapping[str, Any]  # as the hub lists them, by path


def check(repository: str) -> None:
    """Raise `ConfigError` if the name can't be a repository's, or nobody is logged in, `MachineError` if the
    environment forbids the network.
    """
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
        owner, slash, _ = repository.partition("/")
    except HFValidationError:
        owner = slash = ""
    if not (owner and slash):
        raise ConfigError(
            "Q-SHIP-014",
            f"{safe(repository, 120)!r} is not the name of a repository on the hub: give OWNER/NAME",
        )
    if constants.HF_HUB_OFFLINE:
        raise MachineError(
            "Q-SHIP-017", f"HF_HUB_OFFLINE is set, so nothing can be pushed to {repository}: unset it"
        )
    if not get_token():
        raise ConfigError("Q-SHIP-013", f"nobody is logged in to the hub: {LOGIN}")


def push(bundle: Shipped, name: str, *, public: bool) -> Iterator[str]:
    """Push a bundle to the repository `name`, which is made, private unless `public`, if it is missing. Yield
    lines that say what was done.

    Files that the hub has are not sent again, so the same command continues after an interruption. Raises
    `ConfigError` (no right to it, or it is public and `public` is false), `DataError` (it would be public
    without a license), `MachineError` (the hub can't be reached, or holds other bytes than were sent).
    """
    with _hub_errors(name, bundle.folder):
        repository = _opened(name, public=public)
        levels, notes = _levels(repository)
        yield from notes
        old_card = _text(repository, CARD)
        named = bundle.license or known_license(front_matter_of(old_card))
        if named is None:
            _without_license(repository)
            yield (
                "Beware:  the base names no license, so the card says unknown: write it into README.md on "
                "the hub before others use the model"
            )
        levels = {**levels, bundle.level: bundle}
        texts = {
            CARD: repository_card(bundle, levels, repository.name, old_card),
            SUMS: _all_sums(levels),
        }
        commit = _commit(bundle, repository, texts)
        now = _read(name, commit)
        _check_arrived(bundle, texts, now)
    same = "nothing differed" if commit == repository.commit else plural(len(bundle.files), "file")
    yield f"hub:     {_address(name)} ({'private' if now.private else 'public'}; {same}, checked by hash)"
    if public and now.private:
        yield "         it was private and stays so: its settings page makes it public"


def _opened(name: str, *, public: bool) -> Repository:
    """Return the repository at its newest commit. Make it if it is missing."""
    from huggingface_hub.errors import RepositoryNotFoundError

    api, _ = hub_client()
    try:
        repository = _read(name)
    except RepositoryNotFoundError:
        api.create_repo(name, private=not public, exist_ok=True)
        repository = _read(name)
    if not repository.private and not public:
        raise ConfigError(
            "Q-SHIP-015",
            f"{name} is a public repository: say --public if everybody may have this model, or name another "
            "one",
        )
    return repository


def _read(name: str, revision: str | None = None) -> Repository:
    api, timeout = hub_client()
    info = api.model_info(name, revision=revision, files_metadata=True, timeout=timeout)
    files = {file.rfilename: file for file in info.siblings or []}
    return Repository(name, str(info.sha), bool(info.private), files)


def _levels(repository: Repository) -> tuple[dict[str, Shipped], list[str]]:
    """Return the levels that the repository has, and a line for each that can't be read."""
    found: dict[str, Shipped] = {}
    notes: list[str] = []
    for path in sorted(repository.files):
        folder, slash, rest = path.partition("/")
        if not slash or rest != EVALUATION:
            continue
        try:
            level = _fetched(repository, folder)
            if level.level != folder or not set(level.ggufs) <= repository.files.keys():
                raise ValueError("its GGUF is not there")
            found[folder] = level
        except (ValueError, KeyError, FileNotFoundError) as error:
            notes.append(
                f"Beware:  {safe(folder, 60)}/ on the hub is no bundle's ({shortened(error, 120)}): it "
                "stays, and the card does not list it"
            )
    return found, notes


def _fetched(repository: Repository, folder: str) -> Shipped:
    with tempfile.TemporaryDirectory() as scratch:
        for name in READ:
            _fetch(repository, f"{folder}/{name}", Path(scratch))
        return read_bundle(Path(scratch, folder))


def _fetch(repository: Repository, path: str, scratch: Path) -> Path:
    """Fetch a small file. Raises `KeyError` if the repository lacks it, `ValueError` if it is not small."""
    listed = repository.files[path]
    if (listed.size or 0) > MAX_SMALL:
        raise ValueError(f"{path} is larger than {MAX_SMALL >> 20} MB")
    fetch_file(repository.name, repository.commit, listed, scratch)
    return scratch / path


def _text(repository: Repository, path: str) -> str:
    """Return a small text file at the top of the repository; "" if there is none."""
    if path not in repository.files:
        return ""
    with tempfile.TemporaryDirectory() as scratch:
        return read_small(_fetch(repository, path, Path(scratch)))


def _without_license(repository: Repository) -> None:
    """Raise `DataError` if a model without a license would be public."""
    if not repository.private:
        raise DataError(
            "Q-SHIP-016",
            "the base names no license, so nobody could use a public model: push to a private repository, "
            f"or write `license:` into README.md of {repository.name} and push again",
        )


def _all_sums(levels: Mapping[str, Shipped]) -> str:
    """Return SHA256SUMS of the repository: every file of every level."""
    sums: dict[str, str] = {}
    for level in levels.values():
        sums |= level.placed()
    return "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(sums.items()))


def _commit(bundle: Shipped, repository: Repository, texts: Mapping[str, str]) -> str:
    """Send what the hub lacks, and make one commit of it. Return the commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api, _ = hub_client()
    operations: list[Any] = [
        CommitOperationAdd(bundle.place(name), bundle.folder / name) for name in bundle.files
    ]
    operations += [CommitOperationAdd(path, text.encode()) for path, text in texts.items()]
    old_signature = bundle.place(SIGNATURE)
    if SIGNATURE not in bundle.files and old_signature in repository.files:
        operations.append(CommitOperationDelete(old_signature))  # It signed the older files.
    sent = sum((bundle.folder / name).stat().st_size for name in bundle.ggufs)
    print(f"  pushing {bundle.level} to {repository.name}, {sent / 1e9:.2f} GB at most", flush=True)
    done = api.create_commit(
        repository.name,
        operations,
        commit_message=f"Add {bundle.level}, made with Quench",
        parent_commit=repository.commit,
    )
    return str(done.oid)


def _check_arrived(bundle: Shipped, texts: Mapping[str, str], now: Repository) -> None:
    """Raise `MachineError` unless the hub lists every pushed file with the hash that it has here."""
    wrong = [
        bundle.place(name)
        for name in bundle.files
        if bundle.place(name) not in now.files
        or is_damaged(bundle.folder / name, now.files[bundle.place(name)])
    ]
    wrong += [path for path in texts if path not in now.files]
    if wrong:
        raise MachineError(
            "Q-SHIP-018",
            f"{now.name} on the hub has other bytes than were pushed ({', '.join(wrong[:5])}): run the same "
            "command again",
        )


def _address(name: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{name}"


@contextmanager
def _hub_errors(name: str, folder: Path) -> Iterator[None]:
    """Turn the errors of the hub's client into one sentence, without addresses, which may hold secrets."""
    import httpx2

    try:
        yield
    except QuenchError:
        raise
    except (OSError, httpx2.HTTPError, RuntimeError, ValueError) as error:
        chain = list(_causes(error))
        status = next(filter(None, map(_status, chain)), None)
        if status is None and type(error) is OSError:
            raise  # an error of this machine's disk
        raise _refusal(chain, status, name, folder) from None


def _refusal(chain: Sequence[BaseException], status: int | None, name: str, folder: Path) -> QuenchError:
    """Return the error for the user that an error of the hub's client, and what caused it, means."""
    if status in DENIED:
        return ConfigError("Q-SHIP-013", f"the hub does not let you write to {name} ({status}): {LOGIN}")
    if status == CHANGED:
        return MachineError(
            "Q-SHIP-017", f"{name} was changed by somebody else meanwhile: run the same command again"
        )
    first = chain[0]
    if isinstance(first, ValueError) and "metadata" in str(first):
        return DataError(
            "Q-SHIP-022",
            f"the hub refuses the metadata of {CARD} ({shortened(first)}): correct it in {name} on the hub, "
            "or in models/base.json, then push again",
        )
    reason = f"status {status}" if status else type(chain[-1]).__name__
    return MachineError(
        "Q-SHIP-017",
        f"the push to {name} broke off ({reason}): the bundle is in {folder}, and the repository has all of "
        "it or nothing; check the network, then run the same command again, which sends only what is missing",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from, the last cause last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an answer of the hub; None if there was none."""
    return getattr(getattr(error, "response", None), "status_code", None)
