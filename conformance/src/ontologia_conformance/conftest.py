"""The fixtures of the suite; `plugin` has them, for other tests to load as well."""

pytest_plugins = ["ontologia_conformance.plugin"]
