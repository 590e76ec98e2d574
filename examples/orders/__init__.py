"""An order system: stock that is never sold twice, payments, timers, an operator's view."""
