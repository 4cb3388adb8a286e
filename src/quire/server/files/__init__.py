"""Files that clients upload or that are made for them: the inputs and outputs of batches."""
