"""General parts: atomic files, locks, findings, JSON, workers, progress, images, memory."""
