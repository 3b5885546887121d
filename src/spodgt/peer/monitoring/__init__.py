"""What people and programs see of running peers: console, metrics, web page."""
