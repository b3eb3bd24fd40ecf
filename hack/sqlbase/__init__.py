"""A small base model that can be had anywhere: random weights, trained for minutes on the language of the SQL tasks."""
