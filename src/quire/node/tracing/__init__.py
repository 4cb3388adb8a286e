"""What programs did and when: kept for those who ask, and the forms in which it is shown."""
