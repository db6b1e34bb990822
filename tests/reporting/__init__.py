"""Tests of reports, tables, plots and the page."""
