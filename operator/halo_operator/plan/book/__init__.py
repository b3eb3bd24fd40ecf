"""The book of a Workspace: holds, charges and ledger pages, as pure decisions on exact millionths of USD or of H100-hours."""
