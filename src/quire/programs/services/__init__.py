"""What a runtime gives its programs beside the model: mailbox, topics, store, network."""
