"""The dashboard: the page of a run, served and kept up to date while training goes on. Read-only."""
