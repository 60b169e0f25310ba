//! The binary: parse, run, exit code.

use std::process::ExitCode;

use syncline::cli::{self, Handlers};
use syncline::{Error, ErrorKind};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let handlers = Handlers {
        sync: &|_config| Err(Error::new(ErrorKind::Config, "the job is not wired yet")),
        datasets: &|_args, _out| Err(Error::new(ErrorKind::Config, "the data sets are not wired yet")),
    };
    ExitCode::from(cli::run(&args, &handlers, &mut std::io::stdout().lock(), &mut std::io::stderr()))
}
