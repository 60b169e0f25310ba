//! From arguments to the values of options, with every problem in one list.
//!
//! getopts stops at the first error, lets `-p -w` take `-w` for the value of `-p`, and says nothing when two options share a letter
//! (tried with 0.2), so the arguments are read here; timely gets arguments that are known to be good.

use std::fmt;

use super::table::{FLAGS, Flag, by_letter, by_name, closest};

/// Something wrong with the command line, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to write instead.
    pub fix: String,
}

impl Problem {
    /// A problem and its fix.
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Problem { what: what.into(), fix: fix.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fix)
    }
}

/// The options that were given, and what is wrong with how.
#[derive(Debug, Default)]
pub struct Given {
    settings: Vec<Setting>,
    /// What is wrong so far, in the order of the arguments.
    pub problems: Vec<Problem>,
    /// Options that were meant, as far as can be guessed, but not written right: they do not also count as missing.
    meant: Vec<&'static str>,
}

struct Setting {
    flag: &'static Flag,
    by_letter: bool,
    value: String,
}

/// Without the value: it may be a password.
impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting").field("name", &self.flag.name).field("by_letter", &self.by_letter).finish()
    }
}

impl Given {
    /// The value of an option; empty for one without a value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The values of an option that repeats.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.settings.iter().filter(move |option| option.flag.name == name).map(|option| option.value.as_str())
    }

    /// The options as arguments again, without some.
    pub fn to_args(&self, without: &[&str]) -> Vec<String> {
        let kept = self.settings.iter().filter(|option| !without.contains(&option.flag.name));
        let written = kept.map(|Setting { flag, value, .. }| match flag.value {
            Some(_) => format!("--{}={value}", flag.name),
            None => format!("--{}", flag.name),
        });
        written.collect()
    }

    /// Whether an option was given, and by its letter.
    pub fn by_letter(&self, name: &str) -> bool {
        self.settings.iter().any(|option| option.flag.name == name && option.by_letter)
    }

    /// Whether an option was given, perhaps wrongly.
    pub fn meant(&self, name: &str) -> bool {
        self.get(name).is_some() || self.meant.contains(&name)
    }

    /// Reads arguments, without the names of the program and the subcommand.
    pub fn read(args: &[String]) -> Given {
        let mut given = Given::default();
        let mut args = Args { args, at: 0 };
        while let Some(arg) = args.next() {
            if let Some(long) = arg.strip_prefix("--") {
                given.long(long, &mut args);
            } else if arg.len() > 1 && arg.starts_with('-') {
                given.letters(arg, &mut args);
            } else {
                let fix = "every argument belongs to an option; put a value with spaces into quotes";
                given.problems.push(Problem::new(format!("unexpected argument \"{arg}\""), fix));
            }
        }
        given
    }

    fn long(&mut self, long: &str, args: &mut Args<'_>) {
        let (name, attached) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        match by_name(name) {
            Some(flag) => self.option(flag, format!("--{name}"), false, attached, args),
            None => {
                // What follows is most likely its value.
                if attached.is_none() {
                    args.next_if(|arg| !arg.starts_with('-'));
                }
                self.unknown(&format!("--{name}"), name);
            }
        }
    }

    fn letters(&mut self, arg: &str, args: &mut Args<'_>) {
        let name = arg[1..].split('=').next().unwrap_or_default();
        // -topic_one: getopts would take it for -t with the value opic_one.
        if name.chars().count() > 2 && by_name(name).is_some() {
            self.unknown(&format!("-{name}"), name);
            args.next_if(|arg| !arg.starts_with('-'));
            return;
        }
        let mut rest = arg[1..].chars();
        while let Some(letter) = rest.next() {
            let Some(flag) = by_letter(letter) else {
                self.unknown(&format!("-{letter}"), arg[1..].trim_start_matches('-'));
                args.next_if(|arg| !arg.starts_with('-'));
                return;
            };
            if flag.value.is_some() {
                let attached = Some(rest.as_str().to_owned()).filter(|value| !value.is_empty());
                self.option(flag, format!("-{letter}"), true, attached, args);
                return;
            }
            self.option(flag, format!("-{letter}"), true, None, args);
        }
    }

    fn option(
        &mut self,
        flag: &'static Flag,
        written: String,
        by_letter: bool,
        attached: Option<String>,
        args: &mut Args<'_>,
    ) {
        let value = match (flag.value, attached) {
            (None, None) => String::new(),
            (None, Some(_)) => {
                let problem = Problem::new(format!("{written} takes no value"), format!("write {written} alone"));
                return self.wrong(flag, problem);
            }
            (Some(_), Some(value)) => value,
            (Some(name), None) => match args.next_if(|arg| !is_option(arg)) {
                Some(value) => value.to_owned(),
                None => {
                    let problem = match flag.name {
                        "hostfile" => hostfile_problem("-h has no value"),
                        "process" if by_letter => process_problem("-p has no value"),
                        _ => Problem::new(format!("{written} has no value"), format!("write {written} {name}")),
                    };
                    return self.wrong(flag, problem);
                }
            },
        };
        if flag.name == "process" && by_letter && value.parse::<usize>().is_err() {
            return self.wrong(flag, process_problem(&format!("-p \"{value}\" is not a number")));
        }
        if let Some(first) = self.get(flag.name).filter(|_| !flag.repeats && flag.value.is_some()) {
            let what = format!("--{} is given twice, as \"{first}\" and \"{value}\"", flag.name);
            return self.wrong(flag, Problem::new(what, "keep one"));
        }
        self.settings.push(Setting { flag, by_letter, value });
    }

    fn wrong(&mut self, flag: &'static Flag, problem: Problem) {
        self.meant.push(flag.name);
        self.problems.push(problem);
    }

    fn unknown(&mut self, written: &str, name: &str) {
        let fix = match closest(name, FLAGS.iter().map(|flag| flag.name)) {
            Some(name) => {
                self.meant.extend(by_name(name).map(|flag| flag.name));
                format!("did you mean --{name}?")
            }
            None => "syncline sync --help lists all options".to_owned(),
        };
        self.problems.push(Problem::new(format!("unknown option {written}"), fix));
    }
}

/// The text for everything that goes wrong with `-h`.
pub(super) fn hostfile_problem(what: &str) -> Problem {
    Problem::new(what, "-h is timely's hostfile, a file with the address of each process; for help write --help")
}

fn process_problem(what: &str) -> Problem {
    let fix = "-p is timely's index of this process (-p 0), FASTEN's -p (production) is written --production here";
    Problem::new(what, fix)
}

/// Whether an argument is one of our options, and so nobody's value.
fn is_option(arg: &str) -> bool {
    match arg.strip_prefix("--") {
        Some(long) => by_name(long.split('=').next().unwrap_or_default()).is_some(),
        None => arg.strip_prefix('-').and_then(|rest| rest.chars().next()).is_some_and(|c| by_letter(c).is_some()),
    }
}

/// Arguments that can be looked at before they are taken.
struct Args<'a> {
    args: &'a [String],
    at: usize,
}

impl<'a> Args<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.next_if(|_| true)
    }

    fn next_if(&mut self, wanted: impl FnOnce(&str) -> bool) -> Option<&'a str> {
        let arg = self.args.get(self.at).filter(|arg| wanted(arg))?;
        self.at += 1;
        Some(arg)
    }
}
