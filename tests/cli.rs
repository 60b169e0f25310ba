//! The binary as a user meets it, and its options against timely's own parser.

use std::process::Command;

use syncline::cli::table::{FLAGS, Group, by_letter, by_name};
use syncline::cli::{self, Outside, parse};

const BASE: &str =
    "sync -b memory:CLI --topic_one one --topic_two two -o sync --topic_one_keys a --topic_two_keys a --window_time 10";

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn syncline(args: &[String]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_syncline")).args(args).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_and_version_go_to_standard_output() {
    let (code, out, err) = syncline(&words("sync --help"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("--topic_one_keys PATHS"), "{out}");
    let (code, out, _) = syncline(&words("--version"));
    assert_eq!((code, out.as_str()), (Some(0), concat!("syncline ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn t16_a_wrong_command_line_is_exit_code_2_with_all_problems() {
    let (code, out, err) = syncline(&words("sync -b memory:CLI -w 180"));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(err.lines().filter(|line| line.starts_with("  ")).count(), 6, "{err}");
    assert!(err.contains("-w 180 without --window_time"), "{err}");
}

/// Whatever timely's parser knows must be in our table, with the same letter: it grows with timely.
#[test]
fn the_table_has_every_option_of_timely() {
    let mut options = getopts::Options::new();
    timely::Config::install_options(&mut options);
    let usage = options.usage("");
    let mut count = 0;
    for line in usage.lines().filter(|line| line.trim_start().starts_with('-')) {
        let mut words = line.split_whitespace().map(|word| word.trim_end_matches(','));
        let mut word = words.next().expect("an option");
        if let Some(letter) = word.strip_prefix('-').filter(|letter| letter.len() == 1) {
            word = words.next().expect("its long name");
            let flag = by_letter(letter.chars().next().expect("a letter")).unwrap_or_else(|| panic!("-{letter}"));
            assert_eq!(Some(flag.name), word.strip_prefix("--"));
        }
        let flag =
            word.strip_prefix("--").and_then(by_name).unwrap_or_else(|| panic!("{word} of timely is not in the table"));
        assert_eq!(flag.group, Group::Workers);
        count += 1;
    }
    assert_eq!(count, FLAGS.iter().filter(|flag| flag.group == Group::Workers).count());
}

#[test]
fn timely_reads_what_we_pass_on() {
    let hosts = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(hosts.path(), "a:1\nb:2\n").expect("a file");
    let line = format!("{BASE} -w 3 -n 2 -p 1 -r -z --progress-mode eager --idle-spin 7 -h {}", hosts.path().display());
    let Ok(cli::Command::Sync(config)) = parse(&words(&line), &Outside::new()) else { panic!("{line}") };
    let timely = timely::Config::from_args(config.workers.args.into_iter()).expect("timely's configuration");
    match timely.communication {
        timely::CommunicationConfig::Cluster { threads, process, addresses, report, zerocopy } => {
            assert_eq!((threads, process, report, zerocopy), (3, 1, true, true));
            assert_eq!(addresses, ["a:1", "b:2"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_log_has_the_actions_of_the_original_job() {
    let folder = tempfile::tempdir().unwrap();
    let line = |key: u64, time: u64| format!("{{\"k\":\"key-{key}\",\"t\":{time}}}\n");
    let (one, two) = (line(1, 1_000) + &line(2, 1_000) + &line(2, 1_001), line(1, 1_000) + &line(1, 1_001));
    std::fs::write(folder.path().join("one.jsonl"), one).unwrap();
    std::fs::write(folder.path().join("two.jsonl"), two).unwrap();
    let arguments = format!(
        "sync -b file:{0} --topic_one one --topic_two two --topic_one_keys k --topic_two_keys k -o sync --window_time 1 \
         --delay_topic delay --enable_delay true --timestamp_field t --until end --output_brokers file:{0}/out",
        folder.path().display()
    );
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_syncline"));
    let output = command.args(arguments.split(' ')).env("SYNCLINE_LOG", "trace").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    for (action, key) in [("INCOMING", 1), ("JOIN", 1), ("DUPLICATE-OVERRIDE", 2), ("DELAY", 2)] {
        let fields = [format!("action=\"{action}\""), format!("key=key-{key}")];
        let found = log.lines().any(|line| fields.iter().all(|field| line.contains(field)));
        assert!(found, "{fields:?} in\n{log}");
    }
    assert_eq!(log.matches("action=\"INCOMING\"").count(), 5);
}
