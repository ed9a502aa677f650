"""What every server of ours needs: listening, strangers, TLS, and where its socket lies."""
