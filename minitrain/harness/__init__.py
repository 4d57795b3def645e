"""Starting, watching and ending ranks and hosts; nothing here changes a result."""
