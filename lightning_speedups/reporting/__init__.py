"""What every room reports with: records, terminal tables, plots and the one-file HTML page."""
