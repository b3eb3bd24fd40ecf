"""`hack/bench/sft`: Halo's trainer and TRL's SFTTrainer, step by step in turn, on the same rows."""
