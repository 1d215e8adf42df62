"""Context of one gRPC call: principal, role, deadline, request id."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from registry.model.names import check_request_id
from registry.runtime.clock import Deadline
from registry.transactions.context import OPERATOR, UNAUTHENTICATED, Caller


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: the common name of the client's certificate, or nobody known."""

    name: str
    role: str


ANONYMOUS = Principal("anonymous", UNAUTHENTICATED)


def operator(common_name: str) -> Principal:
    """Somebody who showed a certificate of our authority."""
    return Principal(common_name, OPERATOR)


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call: its method's name, who makes it, and how long it may take.

    `origin` is whom limits count it to: the principal that a certificate names, or else the connection.
    """

    method: str
    principal: Principal
    deadline: Deadline
    origin: str

    def caller(self, request_id: str) -> Caller:
        """Who asks for a change; an empty id is replaced by one of ours.

        Raises:
            InvalidArgument: the id is none.
        """
        if request_id:
            check_request_id(request_id)
        made = request_id or f"auto-{secrets.token_hex(12)}"
        return Caller(self.principal.name, self.principal.role, made, request_id_given=bool(request_id))
