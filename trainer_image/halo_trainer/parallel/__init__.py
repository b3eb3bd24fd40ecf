"""More than one process: ranks that share each step's rows and sum their gradients."""
