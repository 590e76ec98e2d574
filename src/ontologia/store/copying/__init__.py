"""Moving a store to another database: everything in it, compared at the end."""

from ontologia.store.copying.report import CopiedTable, Progress, Report
from ontologia.store.copying.transfer import copy_store

__all__ = ["CopiedTable", "Progress", "Report", "copy_store"]
