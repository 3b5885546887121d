"""Links between peers: frames as bytes, connections, streams, access control."""
