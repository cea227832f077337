"""Keys in files, and the rule that a server without one is for its own machine alone."""

from ipaddress import ip_address
from pathlib import Path

from addnorm.errors import InputError
from addnorm.files import read_file

LONGEST_KEY = 4096


def is_loopback(host: str) -> bool:
    """Whether a name or an address is of this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def read_key(file: Path) -> str:
    """The key in a file, without white space around it. Raises `InputError` for an empty one."""
    try:
        key = read_file(file, LONGEST_KEY).decode("ascii").strip()
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: a key has ASCII characters alone") from error
    if not key or any(char.isspace() for char in key):
        raise InputError(f"{file}: a key is one word, and this file has {len(key.split())}")
    return key


def check_host(host: str, key: str | None) -> None:
    """Raise `InputError` for an address that others reach while nobody needs a key."""
    if key is None and not is_loopback(host):
        raise InputError(
            f"`host = {host}`: others would reach it without a key: give `api_key_file`, or listen "
            "on 127.0.0.1"
        )
