"""report.html of a run: what is read from its folder, and the sections of the page."""
