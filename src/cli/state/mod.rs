//! `syncline state`: looks at a folder of checkpoints, also while its job runs. Takes no lock and writes nothing.

mod keys;
mod list;
mod names;
mod verify;

use std::io::{self, BufWriter, Write};

use super::args::Problem;
use super::config::{self, Property};
use super::table::closest;
use super::{Outside, properties};
use crate::checkpoint::{self, Location, inspect_beside};
use crate::error::{Error, ErrorKind, Result};

/// The help of `syncline state`.
pub const HELP: &str = "\
syncline state: looks at a folder of checkpoints, also while its job runs; takes no lock and writes
nothing

Usage: syncline state ls FOLDER
       syncline state verify FOLDER
       syncline state show FOLDER --key KEY
       syncline state export FOLDER [--collection NAME]

FOLDER is the folder of a job, or the --backendFolder above it if that holds only one job; or the
URL of one in an object store, to whose client --store PROPERTY=VALUE says what the environment
does not

  ls      the job, its settings, who holds it, how far it has come, its files and collections
  verify  reads everything and says what is damaged: the file, the byte, and what to do
  show    what is known of a key
            --key KEY          as it is printed, such as group:artifact:1.0
  export  all items as lines of JSON; times are in milliseconds since the Unix epoch
            --collection NAME  only those of this collection, such as keys

Exit codes: 0 done, 1 damaged or not found, 2 wrong command line
";

/// What is done with which folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateCommand {
    /// What is done.
    pub action: Action,
    /// The folder of a job, or the one above it; or a URL.
    pub folder: String,
    /// Properties of the client of its object store.
    pub store: Vec<Property>,
}

/// What can be done with a folder of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Says what is there.
    Ls,
    /// Reads and checks everything.
    Verify,
    /// Says what is known of a key.
    Show {
        /// The key as it is printed.
        key: String,
    },
    /// Prints all items.
    Export {
        /// Only those of this collection.
        collection: Option<String>,
    },
}

/// The actions, and the option that each has.
const ACTIONS: [(&str, Option<(&str, &str)>); 4] =
    [("ls", None), ("verify", None), ("show", Some(("key", "KEY"))), ("export", Some(("collection", "NAME")))];

/// Reads the arguments behind `state`.
///
/// # Errors
///
/// Every problem, each with its fix; of the options, the first.
pub fn parse(args: &[String], outside: &Outside<'_>) -> Result<StateCommand, Vec<Problem>> {
    let names = || ACTIONS.map(|(name, _)| name);
    let Some((action, rest)) = args.split_first() else {
        let fix = format!("write one of {} and a folder: syncline state ls FOLDER", names().join(", "));
        return Err(vec![Problem::new("state does not say what to do", fix)]);
    };
    let Some((action, option)) = ACTIONS.into_iter().find(|(name, _)| name == action) else {
        let fix = match closest(action, names()) {
            Some(name) => format!("did you mean syncline state {name}?"),
            None => format!("write one of {}", names().join(", ")),
        };
        return Err(vec![Problem::new(format!("there is no command \"state {action}\""), fix)]);
    };
    let mut options = getopts::Options::new();
    if let Some((name, value)) = option {
        options.optopt("", name, "", value);
    }
    options.optmulti("", "store", "", "PROPERTY=VALUE");
    let given = options.parse(rest).map_err(|fail| vec![problem(fail, action, option)])?;
    let mut problems = vec![];
    let store = given.opt_strs("store");
    let store = properties::read("store", store.iter().map(String::as_str), outside.env, &mut problems);
    let value = option.and_then(|(name, _)| given.opt_str(name));
    let folder = match given.free.as_slice() {
        [folder] => folder.clone(),
        [] => {
            let fix = format!("syncline state {action} FOLDER, the folder of a job or the --backendFolder above it");
            problems.push(Problem::new("no folder is given", fix));
            String::new()
        }
        [_, more @ ..] => {
            let what = format!("unexpected argument \"{}\"", more.join(" "));
            problems.push(Problem::new(what, "one folder at a time; put a name with spaces into quotes"));
            String::new()
        }
    };
    let action = match (action, value) {
        ("verify", _) => Action::Verify,
        ("show", key) => {
            if key.is_none() {
                problems.push(Problem::new("--key is missing", "--key KEY, as it is printed: group:artifact:1.0"));
            }
            Action::Show { key: key.unwrap_or_default() }
        }
        ("export", collection) => Action::Export { collection },
        _ => Action::Ls,
    };
    if problems.is_empty() { Ok(StateCommand { action, folder, store }) } else { Err(problems) }
}

fn problem(fail: getopts::Fail, action: &str, option: Option<(&str, &str)>) -> Problem {
    use getopts::Fail::{ArgumentMissing, OptionDuplicated, OptionMissing, UnexpectedArgument, UnrecognizedOption};
    let store = "--store PROPERTY=VALUE";
    let usage = match option {
        Some((name, value)) => format!("state {action} has --{name} {value} and {store}"),
        None => format!("state {action} has {store}"),
    };
    match fail {
        UnrecognizedOption(name) => {
            let dashes = if name.chars().count() == 1 { "-" } else { "--" };
            let fix = match closest(&name, option.map(|(name, _)| name).into_iter().chain(["store"])) {
                Some(name) => format!("did you mean --{name}?"),
                None => usage,
            };
            Problem::new(format!("unknown option {dashes}{name}"), fix)
        }
        ArgumentMissing(name) => Problem::new(format!("--{name} has no value"), usage),
        OptionDuplicated(name) => Problem::new(format!("--{name} is given twice"), "keep one"),
        fail @ (OptionMissing(_) | UnexpectedArgument(_)) => Problem::new(fail.to_string(), usage),
    }
}

/// Does what is asked; results go to `out`.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is no store or no such key, [`ErrorKind::Config`] if the folder holds several jobs,
/// [`ErrorKind::Store`] for what is damaged, [`ErrorKind::Write`] if `out` fails for another reason than that nobody reads it.
pub fn run(command: &StateCommand, out: &mut dyn Write) -> Result<()> {
    let location = job_location(checkpoint::open(&command.folder, &config::properties(&command.store))?)?;
    let mut out = BufWriter::new(out);
    let done = match &command.action {
        Action::Ls => list::ls(inspect_beside(&location)?, &mut out),
        Action::Verify => verify::verify(&location, &mut out),
        Action::Show { key } => keys::show(&inspect_beside(&location)?, key, &mut out),
        Action::Export { collection } => keys::export(&inspect_beside(&location)?, collection.as_deref(), &mut out),
    };
    let flushed = out.flush().map_err(unwritten);
    match done.and(flushed) {
        // A reader that has seen enough (head) is no error.
        Err(error) if is_closed(&error) => Ok(()),
        done => done,
    }
}

fn unwritten(error: io::Error) -> Error {
    Error::new(ErrorKind::Write, "the result cannot be printed").with_source(error)
}

fn is_closed(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    error.kind() == ErrorKind::Write && source.is_some_and(|source| source.kind() == io::ErrorKind::BrokenPipe)
}

/// Where a job is: here, or in the only one in it.
fn job_location(location: Location) -> Result<Location> {
    if location.holds_store()? {
        return Ok(location);
    }
    let mut jobs = vec![];
    for below in location.folders()? {
        if below.holds_store()? {
            jobs.push(below);
        }
    }
    let folder = location.folder();
    match jobs.as_slice() {
        [job] => Ok(job.clone()),
        [] => {
            let text = format!(
                "there are no checkpoints in folder {folder:?}, nor in one just below it: give the --backendFolder of a job"
            );
            Err(Error::new(ErrorKind::NotFound, text))
        }
        jobs => {
            let names: Vec<String> = jobs.iter().map(|job| format!("  {}", job.folder().display())).collect();
            let text = format!("folder {folder:?} holds {} jobs: name one of\n{}", jobs.len(), names.join("\n"));
            Err(Error::new(ErrorKind::Config, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn read(line: &str) -> Result<StateCommand, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&args, &Outside::new())
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn every_command_is_read() {
        let command = |action| Ok(StateCommand { action, folder: "dir".into(), store: vec![] });
        assert_eq!(read("ls dir"), command(Action::Ls));
        assert_eq!(read("verify dir"), command(Action::Verify));
        assert_eq!(read("show dir --key -1:a"), command(Action::Show { key: "-1:a".into() }));
        assert_eq!(read("export --collection=keys dir"), command(Action::Export { collection: Some("keys".into()) }));
        assert_eq!(read("export dir"), command(Action::Export { collection: None }));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_fix() {
        for (line, problem) in [
            (
                "",
                "state does not say what to do: write one of ls, verify, show, export and a folder: syncline state ls FOLDER",
            ),
            ("verfy dir", "there is no command \"state verfy\": did you mean syncline state verify?"),
            ("what dir", "there is no command \"state what\": write one of ls, verify, show, export"),
            ("ls", "no folder is given: syncline state ls FOLDER, the folder of a job or the --backendFolder above it"),
            ("ls a b", "unexpected argument \"b\": one folder at a time; put a name with spaces into quotes"),
            ("ls a --store b", "a --store without name or value: write --store PROPERTY=VALUE"),
            ("ls a --stroe b=c", "unknown option --stroe: did you mean --store?"),
            ("ls a --key b", "unknown option --key: state ls has --store PROPERTY=VALUE"),
            ("show a", "--key is missing: --key KEY, as it is printed: group:artifact:1.0"),
            ("show a --keys b", "unknown option --keys: did you mean --key?"),
            ("show a --key", "--key has no value: state show has --key KEY and --store PROPERTY=VALUE"),
            ("show a --key b --key c", "--key is given twice: keep one"),
            ("export a -x", "unknown option -x: state export has --collection NAME and --store PROPERTY=VALUE"),
        ] {
            assert_eq!(read(line).unwrap_err(), problem, "{line}");
        }
    }

    #[test]
    fn a_folder_above_one_job_stands_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let above = folder.path();
        let at = |folder: &Path| job_location(folder.to_owned().into()).map(|job| job.folder().to_owned());
        assert_eq!(at(&above.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(at(above).unwrap_err().kind(), ErrorKind::NotFound);
        let job = |name: &str| {
            fs::create_dir_all(above.join(name).join("manifests")).unwrap();
            above.join(name)
        };
        let one = job("one_sync");
        assert_eq!(at(above).unwrap(), one);
        assert_eq!(at(&one).unwrap(), one);
        let two = job("two_sync");
        let error = at(above).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let listed = format!("name one of\n  {}\n  {}", one.display(), two.display());
        assert!(error.to_string().ends_with(&listed), "{error}");
    }
}
