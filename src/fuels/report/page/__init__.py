"""Reports as one self-contained HTML page: no network, no dependency, everything escaped."""
