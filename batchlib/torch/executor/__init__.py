"""What runs batches on devices."""
