"""What a training job imports: datasets, samplers, batches, class weights."""
