"""What a peer uses of its host: clocks, files, network interfaces, crash points of tests."""
