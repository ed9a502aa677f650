"""What measures are made of: metrics, counters, latencies, units and the buffer's statistics."""
