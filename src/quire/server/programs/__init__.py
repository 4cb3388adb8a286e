"""The API's bodies and events about programs, queries and their traces."""
