"""Events in a bucket of an S3-compatible service: the extra `s3`."""

from ontologia.store.s3.store import S3EventStore

__all__ = ["S3EventStore"]
