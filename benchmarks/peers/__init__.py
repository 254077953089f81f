"""Other ways to take the same deliveries, each as its own documentation says to do it."""
