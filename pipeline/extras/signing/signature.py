"""Signatures by OpenSSF model signing (https://github.com/ossf/model-signing) with an elliptic key of your
own. Nothing leaves the machine.

    openssl ecparam -name prime256v1 -genkey -noout -out quench.key
    openssl ec -in quench.key -pubout -out quench.pub
    quench ship Q4_K_M --sign quench.key
    quench ship --check models/bundle/NAME-Q4_K_M --key quench.pub
"""

from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.extra_packages import install_command
from pipeline.core.special_files import trouble
from pipeline.core.text import shortened
from pipeline.ship.listing import SIGNATURE

MAX_SIGNATURE_BYTES = 1 << 20
MAX_KEY_BYTES = 1 << 16
NO_KEY = (OSError, ValueError, TypeError, AttributeError)  # the last two: encrypted, or of another kind


def sign(folder: Path, key: Path) -> None:
    """Write model.sig over every file of `folder`, with the private `key`. Raises what `signer` does."""
    _, _, hashing = _library()
    signer(key).set_hashing_config(_covered(hashing)).sign(folder, folder / SIGNATURE)


def signer(key: Path) -> Any:
    """Return the signer with the private `key` (PEM, an unencrypted elliptic key).

    Raises `ToolError` if the library is missing, `ConfigError` for a key that can't sign.
    """
    signing, _, _ = _library()
    _need_key(key)
    try:
        return signing.Config().use_elliptic_key_signer(private_key=key)
    except NO_KEY as error:
        raise ConfigError(
            "Q-SHIP-008",
            f"{key} can't sign ({error}): give an unencrypted private elliptic key as PEM, as `openssl "
            "ecparam` makes it",
        ) from error


def signature_fault(folder: Path, key: Path) -> str | None:
    """Return the reason why model.sig does not vouch for `folder` by the public `key`, in half a sentence;
    None if it does.

    Raises `ToolError` if the library is missing, `ConfigError` for a key that can't verify.
    """
    _, verifying, hashing = _library()
    _need_key(key)
    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    except NO_KEY as error:
        raise ConfigError(
            "Q-SHIP-008",
            f"{key} can't verify ({error}): give the public elliptic key as PEM, as `openssl ec -pubout` "
            "makes it",
        ) from error
    if (folder / SIGNATURE).stat().st_size > MAX_SIGNATURE_BYTES:
        return "it is not a signature (too large)"
    try:  # Hash in our own way, not in the one that the file requests.
        config.set_hashing_config(_covered(hashing)).verify(folder, folder / SIGNATURE)
    # Whatever fails in a foreign file, the library has not vouched for the folder.
    except Exception as error:
        return shortened(error, 300)
    return None


def _need_key(key: Path) -> None:
    """Raise `ConfigError` for a file that the library would read without end."""
    why = trouble(key)
    if not why and not key.is_file():
        why = "it is a folder"
    if not why and key.stat().st_size > MAX_KEY_BYTES:
        why = f"it has more than {MAX_KEY_BYTES >> 10} KB"
    if why:
        raise ConfigError("Q-SHIP-008", f"{key} is not a key ({why}): give an elliptic key as PEM")


def _covered(hashing: Any) -> Any:
    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


def _library() -> tuple[Any, Any, Any]:
    try:
        from model_signing import hashing, signing, verifying
    except ImportError as error:
        raise ToolError(
            "Q-SHIP-009",
            f"signatures need the package model-signing: `{install_command('signing')}`",
        ) from error
    return signing, verifying, hashing
