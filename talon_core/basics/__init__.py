"""What has nothing to do with decoding, and any room may need: files, records, numbers as people write them."""
