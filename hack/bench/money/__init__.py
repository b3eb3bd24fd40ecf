"""The proof of the money: equal holds on a wallet for fewer of them, while replicas of the operator are killed."""
