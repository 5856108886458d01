"""What has nothing to do with decoding, and any folder may need: files, records, numbers as people write them."""
