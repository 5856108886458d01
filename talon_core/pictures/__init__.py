"""Draft trees as people see them."""
