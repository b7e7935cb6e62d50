"""From files to windows: the panel, its readers, gap filling, the synthetic federation."""
