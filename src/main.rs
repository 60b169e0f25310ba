//! The binary: parse, run, exit code.

use std::io::Write;

use syncline::cli;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

fn main() {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune();
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let code = cli::run(&args, &mut std::io::stdout(), &mut std::io::stderr());
    let _ = std::io::stdout().flush(); // nobody is left to be told
    // Threads of a job that has failed may still be inside of client libraries, and the hooks of an ordinary exit (OpenSSL's)
    // would take from them what they use: a segmentation fault in place of the exit code.
    signal_hook::low_level::exit(i32::from(code));
}
