"""State as JSON lines: out of a store, and into one."""

from ontologia.runtime.transfer.exporting import Export, export_state
from ontologia.runtime.transfer.importing import ImportReport, import_state
from ontologia.runtime.transfer.lines import lines_of

__all__ = ["Export", "ImportReport", "export_state", "import_state", "lines_of"]
