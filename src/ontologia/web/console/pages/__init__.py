"""The pages, a module each; `ontologia.web.console.app` says how one is added."""
