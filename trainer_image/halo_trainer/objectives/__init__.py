"""What is minimised: functions of tensors, nothing else."""
