//! The allocator of the binary. Users of the library choose their own.

pub use mimalloc::MiMalloc;

/// Lets freed memory stay with the process for 100 ms, instead of 10, before it goes back to the system.
///
/// Merges of batches take and give back large buffers all the time; what has gone back is cleared by the kernel, page by page,
/// when it is taken again: up to a third of the CPU. A second would save a little more, and cost memory. Call it first in `main`.
#[allow(unsafe_code)] // the bindings have no safe form, and no name for this option
pub fn keep_freed_memory() {
    /// `mi_option_purge_delay` of `mimalloc.h`, in milliseconds.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: sets a number among the options of mimalloc, which has had this one under this index since version 2.0.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 100) };
}
