//! The store on a simulated disk and on a real one.
