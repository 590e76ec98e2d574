"""`ontologia relay` and `ontologia intake`: events to other systems, and from there."""

from __future__ import annotations

from typing import Annotated

import typer

from ontologia.cli.call import Call
from ontologia.cli.output import say, show_json

_UntilEmpty = Annotated[
    bool, typer.Option("--until-empty", help="End when nothing is left, rather than when stopped.")
]


def relay(
    call: Call,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URI", help="kafka://broker:9092/topic or s3://bucket/prefix."
        ),
    ],
    type: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Event type to send; may be repeated."),
    ] = None,
    formerly: Annotated[
        list[str] | None,
        typer.Option(
            "--formerly",
            metavar="NAME",
            help="Consumer whose work is taken over, as relay:URI; may be repeated.",
        ),
    ] = None,
    until_empty: _UntilEmpty = False,
) -> None:
    """Send the events of a namespace to a topic of Kafka or to a bucket, until stopped.

    Each event is sent once it is committed, at least once, under its own id; those of one root in
    their order. A relay that is new to the store begins with all retained events. Several relays of
    one target may run; they take turns. Events that an intake has stored from the same target are
    not sent back. ontologia events consumers shows what waits, as relay:URI; --formerly relay:OLD-URI
    takes that over where the brokers or the bucket have another name now.

    Security options of Kafka come from the setting kafka_options; credentials of S3 from
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and AWS_ALLOW_HTTP.

    Ctrl+C or SIGTERM lets the batch at hand come to its end; a second one does not wait.

    Example: ontologia relay --to kafka://broker:9092/shop.events --type order.placed
    """
    from ontologia.cli.worklog import shown
    from ontologia.relay import Relay

    with call.writing() as session:
        running = Relay(session, to, type or None, formerly=formerly or ())
        with shown(session, running, lambda: running.stopping):
            if until_empty:
                running.run_until_empty()
            else:
                running.run()
        lag = running.lag()
    if call.json:
        show_json({"sent": running.done, "refused": running.failed, "lag": lag})
    else:
        say(f"stopped: {running.done:,} sent, {running.failed:,} refused, {lag:,} wait")


def intake(
    call: Call,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="URI", help="kafka://broker:9092/topic or s3://bucket/prefix."
        ),
    ],
    until_empty: _UntilEmpty = False,
) -> None:
    """Store the events that a topic of Kafka or a bucket has in a namespace, until stopped.

    Each event is stored once, under its own id and with its lineage; one that is there already is
    left out. How far the source was read is stored with the events; ontologia info shows it. A
    message that is no event is skipped, and an event intake.refused tells of it.

    Of a bucket the messages of the namespace are read. Options and credentials as for
    ontologia relay. Ctrl+C or SIGTERM ends it when what was read is stored.

    Example: ontologia intake --from s3://bucket/events --namespace shop
    """
    from ontologia.cli.worklog import shown
    from ontologia.relay import Intake

    with call.writing() as session:
        running = Intake(session, source)
        with shown(session, running, lambda: running.stopping):
            if until_empty:
                running.run_until_empty()
            else:
                running.run()
    stored, known, refused = running.stored, running.known, running.refused
    if call.json:
        show_json({"stored": stored, "known": known, "refused": refused})
    else:
        say(f"stopped: {stored:,} stored, {known:,} known already, {refused:,} refused")
