//! The command line: arguments, help, logs and the progress line. The only part of the crate that prints.

pub mod args;
mod brokers;
pub mod config;
pub mod help;
pub mod log;
mod positions;
mod progress;
mod properties;
mod restart;
mod run;
pub mod state;
mod supervise;
mod sync;
pub mod table;
#[cfg(test)]
mod tests;
pub mod units;
mod workers;

use std::fmt;
use std::io::Write;

use args::Problem;
use config::SyncConfig;

use crate::broker::{self, BrokerOptions};
use crate::error::{ErrorKind, Result};

/// The exit code of a job that has done its work.
pub const DONE: u8 = 0;
/// The exit code of a job that failed while it ran.
pub const FAILED: u8 = 1;
/// The exit code of a wrong command line or configuration.
pub const USAGE: u8 = 2;

const COMMANDS: [&str; 3] = ["sync", "state", "datasets"];

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Run the synchronization job.
    Sync(Box<SyncConfig>),
    /// Look at a folder of checkpoints.
    State(state::StateCommand),
    /// Do something with data sets; with the arguments behind `datasets`.
    Datasets(Vec<String>),
    /// Print a text.
    Print(String),
}

/// Checks a broker, and a topic to read from it (or that it can be written to), without connecting.
pub type CheckBroker<'a> = &'a dyn Fn(&str, Option<&str>, &BrokerOptions) -> Result<()>;

/// Checks the name of an output of a broker, without connecting.
pub type CheckOutput<'a> = &'a dyn Fn(&str, &str) -> Result<()>;

/// What the reading of a command line asks others.
pub struct Outside<'a> {
    /// Looks up a variable of the environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Checks a broker.
    pub broker: CheckBroker<'a>,
    /// Checks an output.
    pub output: CheckOutput<'a>,
}

impl Outside<'_> {
    /// The environment of the process, and the brokers of this build.
    pub fn new() -> Self {
        Outside {
            env: &|name| std::env::var(name).ok(),
            broker: &|name, topic, options| match topic {
                Some(topic) => broker::source(name, topic, options).map(drop),
                None => broker::sink(name, options).map(drop),
            },
            output: &broker::check_output,
        }
    }
}

impl Default for Outside<'_> {
    fn default() -> Self {
        Outside::new()
    }
}

impl fmt::Debug for Outside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside").finish_non_exhaustive()
    }
}

/// Reads a command line, without the name of the program.
///
/// # Errors
///
/// Every problem, each with its fix.
pub fn parse(args: &[String], outside: &Outside<'_>) -> Result<Command, Vec<Problem>> {
    let Some((command, rest)) = args.split_first() else {
        return Err(vec![Problem::new("no command", "write syncline sync ..., or syncline --help")]);
    };
    let asks = |option: &str| rest.iter().any(|arg| arg == option);
    match command.as_str() {
        "--help" | "help" => Ok(Command::Print(help::PROGRAM.to_owned())),
        "--version" => Ok(Command::Print(version())),
        "sync" if asks("--help") => Ok(Command::Print(help::sync())),
        "sync" if asks("--version") => Ok(Command::Print(version())),
        "sync" => sync::config(rest, outside).map(|config| Command::Sync(Box::new(config))),
        "state" if asks("--help") => Ok(Command::Print(state::HELP.to_owned())),
        "state" => state::parse(rest, outside).map(Command::State),
        "datasets" => Ok(Command::Datasets(rest.to_vec())),
        option if option.starts_with('-') => {
            let what = format!("\"{option}\" stands before the command");
            Err(vec![Problem::new(what, "write the command first: syncline sync ..., or syncline --help")])
        }
        other => {
            let fix = match table::closest(other, COMMANDS) {
                Some(command) => format!("did you mean {command}?"),
                None => format!("the commands are {}; syncline --help says more", COMMANDS.join(", ")),
            };
            Err(vec![Problem::new(format!("there is no command \"{other}\""), fix)])
        }
    }
}

fn version() -> String {
    format!("syncline {}\n", env!("CARGO_PKG_VERSION"))
}

/// Runs a command line, without the name of the program, prints results to `out` and errors to `err`, and returns the exit code.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let command = match parse(args, &Outside::new()) {
        Ok(command) => command,
        Err(problems) => {
            let about = match args.first().map(String::as_str) {
                Some("sync") => "syncline sync --help",
                Some("state") => "syncline state --help",
                _ => "syncline --help",
            };
            // Nobody is left to be told when standard error is closed.
            let _ = writeln!(err, "{}{about} says more", help::problems(&problems));
            return USAGE;
        }
    };
    let result = match command {
        // A reader that has seen enough (head) is no error.
        Command::Print(text) => {
            let _ = out.write_all(text.as_bytes());
            Ok(())
        }
        Command::State(command) => state::run(&command, out),
        Command::Datasets(args) => crate::datasets::run(&args, out),
        Command::Sync(config) => {
            if config.supervision.is_some() || !supervise::is_supervised() {
                for warning in &config.warnings {
                    let _ = writeln!(err, "syncline: warning: {warning}");
                }
            }
            run::run(*config, out)
        }
    };
    match result {
        Ok(()) => DONE,
        Err(error) => {
            let _ = writeln!(err, "syncline: {}", error.report());
            if error.kind() == ErrorKind::Config { USAGE } else { FAILED }
        }
    }
}
