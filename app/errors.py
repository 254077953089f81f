"""The exception tree.

DraftgateError
├── SettingsError          a setting is wrong; the process does not start (exit 2)
├── SchemaError            the database's schema is not this version's (exit 3)
├── Rejected               the request is refused; becomes problem JSON at the edge
├── Unrecorded             a delivery could not be committed in time; becomes 503
├── SpoolError             the spool can't be used now; what it was to take is 503
├── VaultError             a stored token was encrypted with a key that is not set
├── DrafterError           a drafter run gave no usable result; the session is released
└── ShortcutError          the Shortcut API did not do what was asked
    ├── WebhookUnknown         a webhook was made, and its id not told
    ├── ShortcutUnavailable    it may work later: timeout, 5xx, connection lost, 429
    └── ShortcutRefused        it will not work as asked: 4xx
        └── GrantRevoked           nor ever again with this refresh token

Losing a claim is no exception but a value: `None` or `False` from the gate.
"""


class DraftgateError(Exception):
    """The base of every error that this service raises on purpose."""


class SettingsError(DraftgateError):
    """A setting is missing or wrong. The text is one line for the person who set it."""


class SchemaError(DraftgateError):
    """The database's schema is older or newer than this version needs."""


class Rejected(DraftgateError):
    """A request that is refused, with the problem's code and a sentence about it.

    Attributes:
        code: stable identifier of the problem, e.g. `signature-invalid`.
        status: the HTTP status code.
    """

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


class Unrecorded(DraftgateError):
    """The database did not commit the delivery in time; the sender should come back."""


class SpoolError(DraftgateError):
    """The spool's file can't be used: no space left in it, no disk, no such thing."""


class VaultError(DraftgateError):
    """A stored token was encrypted with a key that is not set."""


class DrafterError(DraftgateError):
    """The drafter could not start, exited non-zero, ran out of time, or gave no usable patch."""


class ShortcutError(DraftgateError):
    """The Shortcut API did not do what was asked."""


class WebhookUnknown(ShortcutError):
    """A webhook was made whose id Shortcut does not say: somebody has to look it up there."""

    def __init__(self) -> None:
        super().__init__(
            "Shortcut has made a webhook but not said its id: look it up there, then run"
            " `draftgate webhook register --adopt ID`"
        )


class ShortcutUnavailable(ShortcutError):
    """Trying again later may help.

    Attributes:
        retry_after_seconds: how long the API asked to wait, if it said so.
        uncertain: the request may have been carried out all the same.
    """

    def __init__(
        self, message: str, *, retry_after_seconds: float | None = None, uncertain: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.uncertain = uncertain


class ShortcutBusy(ShortcutUnavailable):
    """Too many requests were made already; this one was not carried out."""


class ShortcutRefused(ShortcutError):
    """The API refused the request as it stands; sending it again will not help.

    Attributes:
        status: the HTTP status code.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class GrantRevoked(ShortcutRefused):
    """A refresh token that does not count any more: somebody has to install the app again."""
