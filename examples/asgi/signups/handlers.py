"""What follows from a request, after it was answered."""

from __future__ import annotations

from ontologia import HandlerContext, on_event

from .models import User, UserSignedUp, Welcome


@on_event(UserSignedUp, name="signups.welcome")
def welcome(ctx: HandlerContext[UserSignedUp]) -> None:
    """Send a mail. A real one would be given the user's id as its key, so as not to go out twice."""
    user = ctx.query().entities(User).where(User.id == ctx.event.user_id).first()
    if user is not None:
        ctx.ensure(Welcome(user_id=user.id, email=user.email))
        ctx.commit()
