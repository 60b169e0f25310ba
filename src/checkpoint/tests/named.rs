//! What is refused, and with which words.
