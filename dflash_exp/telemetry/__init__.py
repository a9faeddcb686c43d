"""What a run says of itself: metric names, sinks, progress."""
