"""The networks of trained drafters, as plain PyTorch modules that drafting and training share."""
