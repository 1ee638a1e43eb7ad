"""Files to batches: data sets, transforms, samplers, loaders."""
