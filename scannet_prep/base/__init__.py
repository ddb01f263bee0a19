"""What any program needs: errors, files that are whole or not there, JSON, progress, memory."""
