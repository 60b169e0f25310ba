//! The texts of `--help`, and of a wrong command line.

use std::fmt::Write;

use super::args::Problem;
use super::table::{FLAGS, Flag, Group};

/// The help of the program.
pub const PROGRAM: &str = "\
syncline: joins topics of message brokers on a key, with deadlines

Usage: syncline <COMMAND> ...

Commands:
  sync                synchronize two topics; syncline sync --help lists its options
  state ls|verify|show|export FOLDER  look at a folder of checkpoints; syncline state --help says more
  datasets list       list the data sets that can be made
  datasets make NAME  make one

  --help     print this
  --version  print the version

Exit codes: 0 done, 1 failed while running, 2 wrong command line or configuration
";

const SYNC: &str = "\
syncline sync: writes one record for every key that both topics have, and a delay for a key that
only one of them has when its time is over

Usage: syncline sync -b BROKERS --topic_one TOPIC --topic_two TOPIC --topic_one_keys PATHS
                     --topic_two_keys PATHS -o NAME --window_time SECONDS
                     [--enable_delay true --delay_topic NAME] ...

Durations have a unit (250ms, 10s, 3m, 1h30m, PT3M), sizes too (512MiB); only --window_time is a bare
number.
";

/// Help lines are broken before this column.
const WIDTH: usize = 100;

/// Where the explanations start.
const INDENT: usize = 34;

/// The help of `syncline sync`.
pub fn sync() -> String {
    let mut text = SYNC.to_owned();
    for (group, title) in Group::ALL {
        text.push_str(&format!("\n{title}:\n"));
        for flag in FLAGS.iter().filter(|flag| flag.group == group) {
            text.push_str(&lines(flag));
        }
    }
    text.push_str("\nExit codes: 0 done, 1 failed while running, 2 wrong command line or configuration\n");
    text
}

fn lines(flag: &Flag) -> String {
    let mut line = match flag.letter {
        Some(letter) => format!("  -{letter}, --{}", flag.name),
        None => format!("      --{}", flag.name),
    };
    if let Some(value) = flag.value {
        line.push_str(&format!(" {value}"));
    }
    let mut help = flag.help.to_owned();
    if flag.repeats {
        help.push_str("; repeatable");
    }
    if let Some(default) = flag.default {
        help.push_str(&format!(" [default: {default}]"));
    }
    let mut text = String::new();
    if line.len() + 2 > INDENT {
        text.push_str(&line);
        text.push('\n');
        line.clear();
    }
    line.push_str(&" ".repeat(INDENT.saturating_sub(line.len() + 1)));
    for word in help.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = " ".repeat(INDENT - 1);
        }
        line.push(' ');
        line.push_str(word);
    }
    text + &line + "\n"
}

/// What a wrong command line prints.
pub fn problems(problems: &[Problem]) -> String {
    let mut text = match problems.len() {
        1 => "syncline: a problem with the command line\n".to_owned(),
        number => format!("syncline: {number} problems with the command line\n"),
    };
    for problem in problems {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {problem}");
    }
    text
}
