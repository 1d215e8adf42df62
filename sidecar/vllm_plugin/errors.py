"""How the plugin says no. Each has a stable reason, an HTTP status, and a sentence for people."""

from __future__ import annotations


class PluginError(Exception):
    """A request was not carried out; unless it is `DeadlinePassed`, nothing was changed."""

    reason = "internal"
    status = 500

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidRequest(PluginError):
    """The request is malformed; `field` says where."""

    reason, status = "invalid_argument", 400


class NotLoaded(PluginError):
    """No adapter is registered under that name."""

    reason, status = "not_loaded", 404


class PathMissing(PluginError):
    """There is no adapter in that directory."""

    reason, status = "path_missing", 404


class Conflict(PluginError):
    """The name is bound to something else than the caller believes."""

    reason, status = "conflict", 409


class Refused(PluginError):
    """The engine does not take the adapter; the message is the engine's."""

    reason, status = "refused", 500


class Busy(PluginError):
    """Somebody else loads or unloads that name, or too much is still draining."""

    reason, status = "busy", 503


class DeadlinePassed(PluginError):
    """The engine did not answer in time. The name is still bound to what it was bound to."""

    reason, status = "deadline", 504
