"""What happened: the Record, its folder on disk, and the table of metrics."""
