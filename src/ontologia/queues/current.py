"""What is being handled here: the tenant, and the delivery."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import NamedTuple

from ontologia.queues.protocol import DomainEvent
from ontologia.runtime.session import Session
from ontologia.store.rows import Claim

_tenant: ContextVar[str | None] = ContextVar("ontologia_tenant", default=None)


class Delivered(NamedTuple):
    """An event that a worker is handling."""

    event: DomainEvent
    attempt: int
    claim: Claim | None
    """The fence for what is written meanwhile; None where the queue has none."""
    session: Session | None = None
    """The session whose claim it is."""


delivered: ContextVar[Delivered | None] = ContextVar("ontologia_delivered", default=None)
"""The delivery that is handled in this context; None outside of a worker's handlers."""


@contextmanager
def delivering(delivery: Delivered) -> Generator[None]:
    """Within it the delivery is handled, for the tenant of its event."""
    tenant = set_current_tenant_id(delivery.event.tenant_id)
    token = delivered.set(delivery)
    try:
        yield
    finally:
        delivered.reset(token)
        reset_current_tenant_id(tenant)


def set_current_tenant_id(tenant_id: str | None) -> Token[str | None]:
    """Work for this tenant from here on, in this context; `reset_current_tenant_id` takes it back."""
    return _tenant.set(tenant_id)


def reset_current_tenant_id(token: Token[str | None]) -> None:
    """Work for whom it was before."""
    _tenant.reset(token)


def get_current_tenant_id() -> str | None:
    """The tenant for whom this context works; None if for nobody in particular."""
    return _tenant.get()
