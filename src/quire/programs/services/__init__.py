"""The services of a runtime for its programs: mailbox, topics, store, network, children,
encoders."""
