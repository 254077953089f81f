"""Encrypts tokens before they are stored. No I/O."""

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from app.errors import VaultError


class Vault:
    """Encrypts with the first key, and decrypts what any of the keys has encrypted."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Raises ValueError for what is no key: 32 bytes in URL-safe base64."""
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def seal(self, secret: str) -> bytes:
        """What may be stored of it."""
        return self._fernet.encrypt(secret.encode())

    def open(self, sealed: bytes) -> str:
        """The secret again. Raises VaultError if none of the keys has encrypted it."""
        try:
            return self._fernet.decrypt(sealed).decode()
        except InvalidToken:
            raise VaultError("a token was encrypted with a key that is not set") from None
