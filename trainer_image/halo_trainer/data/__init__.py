"""From a file of rows to the batches of a step."""
