"""Services around services; each file is one layer of the stack."""
