"""What programs hold and where its bytes are: pages over blocks, the prefix index, exports."""
