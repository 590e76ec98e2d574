"""What the project needs to make its documentation; no part of the package."""
