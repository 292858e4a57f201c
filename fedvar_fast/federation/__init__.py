"""Client and server steps as pure functions on small messages, and the engines that carry them."""
