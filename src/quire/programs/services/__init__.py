"""What a runtime gives its programs beside the model: messages to the client, the network."""
