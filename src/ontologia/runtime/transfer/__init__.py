"""State as JSON lines: out of a store, and into one."""

from ontologia.runtime.transfer.exporting import Export, export_state
from ontologia.runtime.transfer.importing import ImportReport, import_state

__all__ = ["Export", "ImportReport", "export_state", "import_state"]
