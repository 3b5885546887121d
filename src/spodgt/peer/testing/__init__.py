"""Several local peers under one supervisor, for demonstrations and tests."""
