//! The binary: parse, run, exit code.

use std::process::ExitCode;

use syncline::cli;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

fn main() -> ExitCode {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune();
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    ExitCode::from(cli::run(&args, &mut std::io::stdout(), &mut std::io::stderr()))
}
