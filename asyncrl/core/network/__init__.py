"""What every server of ours needs: listening, unknown clients, TLS, and where its socket lies."""
