"""Members of a run: certificates, the signed manifest and its changes, folders."""
