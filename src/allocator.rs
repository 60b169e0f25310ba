//! The allocator of the binary. Users of the library choose their own.

pub use mimalloc::MiMalloc;

/// Sets how the process holds memory. Call it first in `main`.
///
/// Freed memory stays with the process for ten seconds, instead of 10 ms, before it goes back to the system. Merges of batches, and
/// checkpoints, take and give back large buffers all the time; what has gone back is cleared by the kernel, page by page, when it is
/// taken again: up to a third of the CPU. 100 ms are enough without checkpoints; with them a second costs 6 % more than ten do, and
/// saves a tenth of the memory.
///
/// Huge pages are off, on Linux: the allocator asks for them, and a few bytes in use then hold two megabytes. Without them a job
/// with a million keys takes a tenth less memory, for the same CPU.
#[allow(unsafe_code)] // the bindings have no safe form, and no name for this option
pub fn tune() {
    /// `mi_option_purge_delay` of `mimalloc.h`, in milliseconds.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: sets a number among the options of mimalloc, which has had this one under this index since version 2.0.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 10_000) };
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true); // where it cannot be, it costs that tenth
}
