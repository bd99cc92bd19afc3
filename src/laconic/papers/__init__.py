"""What papers do that the core does not, runnable under the words of the papers."""
