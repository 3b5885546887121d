"""The protocol of one client, without sockets, files or threads."""
