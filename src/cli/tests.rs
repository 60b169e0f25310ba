//! What would break: a command line of FASTEN's job that means something else here, a typo that is found only after an hour, a
//! problem that hides another one.

use std::time::Duration;

use super::config::ClockMode;
use super::*;
use crate::message::Offset;
use crate::reader::{OnBad, Until};
use crate::source::{Discovery, OnLost, Otherwise, Position};
use crate::sync::{AtEnd, Duplicates, KeyTypes, Late};

/// Splits at spaces.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

const BASE: &str =
    "-b h:9092 --topic_one one --topic_two two -o sync --topic_one_keys a.b,c --topic_two_keys d,e --window_time 10";

/// One variable, and brokers that all exist.
fn outside() -> Outside<'static> {
    Outside {
        env: &|name| (name == "SECRET").then(|| "s3cret".to_owned()),
        broker: &|_, _, _| Ok(()),
        output: &|_, _| Ok(()),
    }
}

fn parsed(line: &str) -> Result<SyncConfig, Vec<String>> {
    match parse(&words(&format!("sync {line}")), &outside()) {
        Ok(Command::Sync(config)) => Ok(*config),
        Ok(other) => panic!("{other:?}"),
        Err(problems) => Err(problems.iter().map(Problem::to_string).collect()),
    }
}

/// The configuration of the base with more options.
pub(super) fn with(more: &str) -> SyncConfig {
    parsed(&format!("{BASE} {more}")).unwrap_or_else(|problems| panic!("{more}: {problems:#?}"))
}

/// The problems of the base with more options.
fn problems(more: &str) -> Vec<String> {
    parsed(&format!("{BASE} {more}")).expect_err(more)
}

/// The only problem of the base with more options, which must have all these parts.
pub(super) fn problem(more: &str, parts: &[&str]) {
    let problems = problems(more);
    assert_eq!(problems.len(), 1, "{more}: {problems:#?}");
    for part in parts {
        assert!(problems[0].contains(part), "{more}: {:?} has no {part:?}", problems[0]);
    }
}

#[test]
fn the_base_has_the_documented_defaults() {
    let config = with("");
    assert_eq!(config.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(config.output_broker, "h:9092");
    assert_eq!(config.joined_topic, "fasten.sync.out");
    assert_eq!((config.delay_topic, config.dead_letter_topic, config.timestamp_field), (None, None, None));
    assert_eq!((config.window, config.remember), (Duration::from_secs(10), Duration::from_secs(100)));
    assert_eq!((config.max_wait, config.max_state_bytes, config.max_records), (None, None, None));
    assert_eq!((config.duplicates, config.late, config.at_end), (Duplicates::Last, Late::Join, AtEnd::Delay));
    assert_eq!((config.key_types, config.clock), (KeyTypes::Typed, ClockMode::Auto));
    assert_eq!((config.on_null, config.on_bad_record), (OnBad::Skip, OnBad::Fail));
    assert_eq!((config.start, config.until), (Position::COMMITTED, Until::Never));
    assert_eq!((config.max_ahead, config.create_topics), (Duration::from_secs(3600), None));
    assert_eq!(config.max_drift, Some(config.window));
    assert_eq!(with("--clock event").max_drift, Some(Duration::from_secs(60)));
    assert_eq!(config.stuck_after, Some(Duration::from_secs(60)));
    assert_eq!(config.remember_ids, Duration::from_secs(600));
    assert_eq!(config.group, "fasten.one.two.sync");
    assert_eq!((config.workers.threads, config.workers.processes, config.workers.process), (1, 1, 0));
    assert!(config.warnings.is_empty() && config.kafka.is_empty());
}

#[test]
fn topics_are_made_with_partitions_and_replicas() {
    let made = |more: &str| with(more).create_topics.map(|create| (create.partitions, create.replication));
    assert_eq!(made("--create_topics 8"), Some((8, None)));
    assert_eq!(made("--create_topics 8:3"), Some((8, Some(3))));
    for wrong in ["fail", "0", "8:", ":3", "8:0", "-1"] {
        problem(&format!("--create_topics {wrong}"), &["--create_topics", "8:3"]);
    }
    problem("--create_topics 8 --output_brokers file:x", &["--create_topics", "leave it out"]);
}

#[test]
fn the_reference_commands_parse() {
    let line = "--brokers file:DIR --topic_one one --topic_two two -o sync --delay_topic delay --enable_delay true \
        --topic_one_keys input.input.groupId,input.input.artifactId,input.input.version \
        --topic_two_keys input.input.input.groupId,input.input.input.artifactId,input.input.input.version --window_time 300 \
        --timestamp_field timestamp --clock event --max_disorder 10s --until end --output_brokers file:OUT -n 2 -p 1 -w 2";
    let config = parsed(line).expect("a configuration");
    assert_eq!(
        config.clock,
        ClockMode::Event { max_disorder: Duration::from_secs(10), idle_after: Duration::from_secs(60) }
    );
    assert_eq!(config.delay_topic.as_deref(), Some("fasten.delay.out"));
    assert_eq!(config.until, Until::End);
    assert_eq!(config.output_broker, "file:OUT");
    assert_eq!((config.workers.threads, config.workers.processes, config.workers.process), (2, 2, 1));

    let line = "-b 127.0.0.1:9092 --topic_one fasten.metadata.out --topic_two fasten.callgraph.out -o sync \
        --topic_one_keys input.groupId,input.artifactId,input.version --topic_two_keys input.groupId,input.artifactId,input.version \
        --window_time 10 --delay_topic delay --enable_delay true -n 2 -w 1 -p 0";
    let config = parsed(line).expect("a configuration");
    assert_eq!(config.group, "fasten.fasten.metadata.out.fasten.callgraph.out.sync");
}

/// Where the checkpoints of a job are.
pub(super) fn folder(config: &SyncConfig) -> String {
    config.job_location().unwrap().unwrap().folder().display().to_string()
}

#[test]
fn every_option_of_fasten_is_there_unchanged() {
    let config = with(
        "--topic_prefix p --enable_delay false --delay_topic d --production --parallelism 3 --backendFolder dir --max_records -1",
    );
    assert_eq!(config.joined_topic, "p.sync.out");
    assert_eq!(config.delay_topic, None, "no delays are wanted");
    assert_eq!((config.workers.threads, config.max_records), (3, None));
    assert_eq!(folder(&config), "dir/one_two_sync");
    let config = with("--production --max_records=5");
    assert_eq!(folder(&config), "/mnt/fasten/flink/one_two_sync");
    assert_eq!(config.max_records, Some(5));
}

#[test]
fn every_option_of_ours_is_read() {
    let config = with(
        "--output_brokers file:OUT --timestamp_field /t --clock event --max_disorder 1s --idle_after PT2M --max_ahead 3h \
         --duplicates first --remember 1h --late drop --at_end keep --max_wait 1m --max_state 512MiB --key_types text \
         --on_null dead_letter --dead_letter_topic dead --name_one left --name_two right --start 2020-09-13T12:26:40Z \
         --until 1600000000001 --group g --kafka a=1 --kafka b=${SECRET}=x",
    );
    assert_eq!(config.output_broker, "file:OUT");
    assert_eq!(config.timestamp_field.map(|path| path.to_string()).as_deref(), Some("/t"));
    assert_eq!(
        config.clock,
        ClockMode::Event { max_disorder: Duration::from_secs(1), idle_after: Duration::from_secs(120) }
    );
    assert_eq!(config.max_ahead, Duration::from_secs(3 * 3600));
    assert_eq!((config.duplicates, config.late, config.at_end), (Duplicates::First, Late::Drop, AtEnd::Keep));
    assert_eq!((config.remember, config.max_wait), (Duration::from_secs(3600), Some(Duration::from_secs(60))));
    assert_eq!((config.max_state_bytes, config.key_types), (Some(512 << 20), KeyTypes::Text));
    assert_eq!((config.on_null, config.on_bad_record), (OnBad::DeadLetter, OnBad::DeadLetter));
    assert_eq!(config.dead_letter_topic.as_deref(), Some("fasten.dead.out"));
    assert_eq!((config.inputs[0].name.as_str(), config.inputs[1].name.as_str()), ("left", "right"));
    assert_eq!(
        (config.start, config.until),
        (Position::Timestamp(1_600_000_000_000), Until::Timestamp(1_600_000_000_001))
    );
    assert_eq!(config.group, "g");
    assert_eq!(
        config.kafka.iter().map(|p| (p.name.as_str(), p.value.as_str())).collect::<Vec<_>>(),
        [("a", "1"), ("b", "s3cret=x")]
    );
}

#[test]
fn drift_and_stuck_readers_have_limits_or_none() {
    let config = with("--max_drift 90s --stuck_after 5m");
    assert_eq!((config.max_drift, config.stuck_after), (Some(Duration::from_secs(90)), Some(Duration::from_secs(300))));
    assert_eq!(with("--remember_ids 1h").remember_ids, Duration::from_secs(3600));
    let config = with("--max_drift off --stuck_after off --clock event");
    assert_eq!((config.max_drift, config.stuck_after), (None, None));
    problem("--max_drift 60", &["--max_drift \"60\"", "needs a unit", "or off"]);
    problem("--max_drift 0s", &["longer than nothing, or off"]);
    problem("--stuck_after no", &["--stuck_after \"no\"", "or off"]);
}

#[test]
fn t16_all_problems_come_as_one_list() {
    let problems = parsed(
        "--brokers h:1 --topic-one one --topic_two_keys a..b --window_time 3m --enable_delay maybe --late dorp --frobnicate 7 \
         --production=true extra --max_state 5 --group g --group h",
    )
    .expect_err("problems");
    let expected = [
        "unknown option --topic-one: did you mean --topic_one?",
        "unknown option --frobnicate: syncline sync --help lists all options",
        "--production takes no value: write --production alone",
        "unexpected argument \"extra\": every argument belongs to an option; put a value with spaces into quotes",
        "--group is given twice, as \"g\" and \"h\": keep one",
        "--topic_two is missing: add --topic_two TOPIC (the second topic; may be in another broker)",
        "--topic_one_keys is missing: add --topic_one_keys PATHS (the key of the first topic: comma-separated paths into its JSON values, \
         a.b.0.c or /a/b/0/c)",
        "--output_topic is missing: add --output_topic NAME (joined records go to PREFIX.NAME.out)",
        "--topic_two_keys \"a..b\": path \"a..b\": a name is empty; if a field is really called so, write the path as a JSON Pointer (/a//b)",
        "--enable_delay \"maybe\": write one of false, true",
        "--window_time \"3m\": it is in seconds, a bare number as in FASTEN's job: 180",
        "--max_state \"5\": not a size: write it as 512MiB, 2GiB, 100MB or 65536B",
        "--late \"dorp\": did you mean drop? (possible: join, drop)",
    ];
    let (mut sorted, mut expected): (Vec<_>, Vec<_>) = (problems.clone(), expected.map(str::to_owned).to_vec());
    sorted.sort();
    expected.sort();
    assert_eq!(sorted, expected);
}

#[test]
fn t16_every_required_option_is_named() {
    let problems = parsed("").expect_err("problems");
    for name in ["brokers", "topic_one", "topic_two", "topic_one_keys", "topic_two_keys", "output_topic", "window_time"]
    {
        assert!(
            problems.iter().any(|problem| problem.starts_with(&format!("--{name} is missing"))),
            "{name}: {problems:#?}"
        );
    }
    assert_eq!(problems.len(), 7, "{problems:#?}");
}

#[test]
fn t16_a_delay_topic_is_required_only_for_delays() {
    problem("--enable_delay true", &["--enable_delay true needs a topic", "--delay_topic"]);
    with("--enable_delay false");
    with("--delay_topic delay");
}

#[test]
fn t11_the_two_sides_are_never_the_same() {
    let sides = |one: &str, two: &str, more: &str| {
        parsed(&format!(
            "-b h:1,i:2 --topic_one {one} --topic_two {two} -o sync --topic_one_keys a --topic_two_keys a --window_time 1 {more}"
        ))
    };
    let problem = |one: &str, two: &str, more: &str, part: &str| {
        let problems = sides(one, two, more).expect_err(part);
        assert!(problems.len() == 1 && problems[0].contains(part), "{problems:#?}");
    };
    problem("x", "x", "", "both sides are topic \"x\" of the same broker");
    problem("x", "kafka://i:2,h:1/x", "--name_one y", "both sides are topic \"x\" of the same broker");
    problem("x", "file:DIR/x", "", "both sides are called \"x\"");
    problem("x", "y", "--name_two x", "both sides are called \"x\"");
    problem("x", "y", "--name_two key", "side two is called \"key\"");
    let config = sides("x", "file:DIR/x", "--name_two z").expect("a configuration");
    assert_eq!((config.inputs[1].broker.as_str(), config.inputs[1].topic.as_str()), ("file:DIR", "x"));
}

#[test]
fn topics_can_be_whole_urls() {
    let config = parsed(
        "--topic_one file:A/one --topic_two memory:B/two --output_brokers file:C -o sync --topic_one_keys a --topic_two_keys a --window_time 1",
    )
    .expect("a configuration");
    assert_eq!(config.inputs.iter().map(|i| i.broker.as_str()).collect::<Vec<_>>(), ["file:A", "memory:B"]);
    let problems = parsed(
        "--topic_one file:A/one --topic_two memory:B/two -o s --topic_one_keys a --topic_two_keys a --window_time 1",
    );
    assert!(problems.expect_err("no output")[0].contains("--output_brokers"));
}

#[test]
fn brokers_say_what_is_wrong_in_the_same_list() {
    let asked = Outside {
        broker: &|broker, topic, options| {
            let topic = topic.unwrap_or("(output)");
            match broker {
                "h:9092" => Err(crate::Error::config(&[format!("no {broker}"), format!("{:?}", options.properties)])),
                _ => Err(crate::Error::new(ErrorKind::Config, format!("no {topic} in {broker}"))),
            }
        },
        ..outside()
    };
    let line = format!("sync {BASE} --kafka a=1 --late dorp").replace("--topic_two two", "--topic_two file:DIR/two");
    let problems = parse(&words(&line), &asked).expect_err("problems");
    assert_eq!(
        problems.iter().map(Problem::to_string).collect::<Vec<_>>(),
        [
            "--late \"dorp\": did you mean drop? (possible: join, drop)",
            "--topic_one: no h:9092; [(\"a\", \"1\")]",
            "--topic_two: no two in file:DIR",
        ]
    );
    // Names of outputs too, once their broker is right.
    let broker = |_: &str, _: Option<&str>, _: &BrokerOptions| Ok(());
    let output = |broker: &str, name: &str| Err(crate::Error::new(ErrorKind::Config, format!("no {name} in {broker}")));
    let asked = Outside { broker: &broker, output: &output, ..outside() };
    let line = format!("sync {BASE} --enable_delay true --delay_topic d");
    let problems = parse(&words(&line), &asked).expect_err("problems");
    assert_eq!(
        problems.iter().map(Problem::to_string).collect::<Vec<_>>(),
        ["--output_topic: no fasten.sync.out in h:9092", "--delay_topic: no fasten.d.out in h:9092"]
    );
    for topic in ["kafka://h:1", "memory:x/"] {
        let line = format!("sync {BASE}").replace("--topic_two two", &format!("--topic_two {topic}"));
        let problems = parse(&words(&line), &outside()).expect_err(topic);
        assert!(problems.len() == 1 && problems[0].what.starts_with("--topic_two"), "{problems:?}");
    }
}

#[test]
fn kafka_properties_are_for_kafka_only() {
    let config = with("--kafka a=1 --output_brokers file:OUT");
    assert_eq!(config.broker_options("h:9092").properties, [("a".to_owned(), "1".to_owned())]);
    assert_eq!(config.broker_options("file:OUT").properties, []);
}

#[test]
fn w_is_workers_and_never_a_window() {
    let line = BASE.replace("--window_time 10", "-w 180");
    let problems = parsed(&line).expect_err("a clash");
    assert_eq!(problems.len(), 1, "{problems:#?}");
    for part in ["-w 180 without --window_time", "worker threads", "FASTEN", "--window_time 180"] {
        assert!(problems[0].contains(part), "{:?} has no {part:?}", problems[0]);
    }
    assert_eq!(with("-w 4").workers.threads, 4);
    assert_eq!(with("-w4").workers.threads, 4);
}

#[test]
fn p_is_the_process_and_never_production() {
    for more in ["-p", "-p -w 4", "-p --clock auto", "-p yes"] {
        problem(more, &["-p", "index of this process", "--production"]);
    }
    assert_eq!(with("-n 3 -p 2").workers.process, 2);
    problem("-n 2 -p 2", &["there are 2 processes"]);
}

#[test]
fn h_is_the_hostfile_and_never_help() {
    for more in ["-h", "-h -w 4", "-h no_such_file"] {
        problem(more, &["-h", "hostfile", "--help"]);
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "a:1\nb:2\n").expect("a file");
    let config = with(&format!("-n 2 -h {}", file.path().display()));
    assert!(config.workers.args.contains(&"--hostfile".to_owned()));
    problem(&format!("-n 3 -h {}", file.path().display()), &["2 lines for 3 processes"]);
}

#[test]
fn parallelism_is_the_total() {
    assert_eq!(with("--parallelism 6 -n 2").workers.threads, 3);
    assert_eq!(with("--parallelism 6 -n 2 -w 3").workers.threads, 3);
    problem("--parallelism 6 -w 4", &["--parallelism 6 against -w 4", "total number of workers"]);
    problem("--parallelism 5 -n 2", &["5 cannot be shared by 2 processes"]);
}

#[test]
fn options_of_timely_pass() {
    let config = with("-rz --progress-mode eager --idle-spin 5 --threads 2");
    assert_eq!(
        config.workers.args,
        words("--threads 2 --processes 1 --process 0 --progress-mode eager --idle-spin 5 --report --zerocopy")
    );
    problem("--progress-mode slow", &["eager or demand"]);
    problem("-w 0", &["--threads \"0\"", "from 1"]);
}

#[test]
fn options_that_would_mean_nothing_are_refused() {
    problem("--max_disorder 1s", &["--max_disorder without --clock event"]);
    problem("--on_bad_record dead_letter", &["--dead_letter_topic"]);
    problem("--max_wait 1s", &["shorter than the window"]);
    problem("--output_brokers file:x --delay_topic sync --enable_delay true", &["both \"fasten.sync.out\""]);
    problem("--topic_prefix=x --dead_letter_topic sync", &["both \"x.sync.out\""]);
    problem("--kafka secret", &["PROPERTY=VALUE"]);
    problem("--backendFolder a --store secret", &["a --store without name or value"]);
    problem("--store a=b", &["--store without a folder of checkpoints"]);
    problem("--backendFolder a --store b=c", &["store \"a\" is a folder, which has no properties: remove \"b\""]);
    problem("--backendFolder gs://a/b", &["--backendFolder", "unknown scheme \"gs\""]);
    problem("--kafka a=${NOBODY}", &["NOBODY"]);
    problem("--kafka a=1 --kafka a=2", &["--kafka a is given twice"]);
    let line = BASE.replace("h:9092", "file:DIR");
    assert!(
        parsed(&format!("{line} --kafka a=1")).expect_err("no Kafka")[0]
            .contains("--kafka without a broker that is Kafka")
    );
    let line = BASE.replace("--topic_two two", "--topic_two fasten.sync.out");
    assert!(parsed(&line).expect_err("a loop")[0].contains("which is an input"));
}

#[test]
fn keys_must_fit() {
    let line = BASE.replace("--topic_two_keys d,e", "--topic_two_keys d.e");
    let problems = parsed(&line).expect_err("two against one");
    assert!(problems[0].starts_with("--topic_one_keys has 2 fields and --topic_two_keys has 1: "), "{problems:?}");
    let line = BASE.replace("--topic_one_keys a.b,c", "--topic_one_keys a,a.b");
    assert!(parsed(&line).expect_err("inside")[0].contains("\"a.b\" is inside of \"a\""));
}

#[test]
fn values_that_are_missing_do_not_swallow_options() {
    problem("--group --late drop", &["--group has no value", "write --group NAME"]);
    problem("--group", &["--group has no value"]);
    problem("--group=", &["--group \"\"", "empty"]);
    problem("-group x", &["unknown option -group", "--group"]);
    problem("-x", &["unknown option -x"]);
    problem("--", &["unknown option --"]);
    let empty = parse(&[words("sync -b"), vec![String::new()], words(&BASE["-b h:9092".len()..])].concat(), &outside());
    assert_eq!(empty.expect_err("no broker"), [Problem::new("--brokers \"\"", "it is empty, give it a value")]);
}

fn run_line(line: &str) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(&words(line), &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (code, text(out), text(err))
}

#[test]
fn exit_codes_tell_what_happened() {
    let (code, out, err) = run_line("datasets list");
    assert_eq!((code, err.as_str()), (DONE, ""));
    assert!(out.contains("fasten"), "{out}");
    let (code, out, err) = run_line("datasets make x");
    assert_eq!((code, out.as_str()), (USAGE, ""));
    assert!(err.starts_with("syncline: ") && err.contains("\"x\""), "{err}");
    let (code, out, err) = run_line("snyc");
    assert_eq!((code, out.as_str()), (USAGE, ""));
    assert_eq!(
        err,
        "syncline: a problem with the command line\n  there is no command \"snyc\": did you mean sync?\nsyncline --help says more\n"
    );
    for line in ["", "-w 4 sync", "sync"] {
        assert_eq!(run_line(line).0, USAGE, "{line}");
    }
}

#[test]
fn help_lists_every_option_in_its_group() {
    let (code, help, _) = run_line("sync -b --nonsense --help");
    assert_eq!(code, DONE);
    for flag in table::FLAGS {
        assert!(help.contains(&format!("--{}", flag.name)), "--{}", flag.name);
    }
    for (_, title) in table::Group::ALL {
        assert!(help.contains(&format!("\n{title}:\n")), "{title}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 101), "{help}");
    assert!(help.contains("  -b, --brokers BROKERS "), "{help}");
    assert!(run_line("--help").1.contains("syncline <COMMAND>"));
    assert!(run_line("--version").1.starts_with("syncline 0."));
}

#[test]
fn starts_are_words_times_or_offsets_by_split() {
    let start = |text: &str| with(&format!("--start {text}")).start;
    assert_eq!(start("committed-or-latest"), Position::Committed { otherwise: Otherwise::Latest });
    assert_eq!(start("latest"), Position::Latest);
    let exact = |name: &str, offset| Position::Exact([(name.to_owned(), Offset(offset))].into());
    let config = with("--start one[0]=12,two[3]=7 --discovery 30s");
    assert_eq!(config.start_of(&config.inputs[0]), exact("one[0]", 12));
    assert_eq!(config.start_of(&config.inputs[1]), exact("two[3]", 7));
    assert_eq!(config.discovery, Discovery::Every(Duration::from_secs(30)));
    assert_eq!(with("--discovery off").discovery, Discovery::Off);
    let files = "--topic_one file:a/one --topic_two file:b/two --output_brokers file:c";
    let config = parsed(&BASE.replace("-b h:9092 --topic_one one --topic_two two", files)).unwrap();
    assert_eq!(config.inputs[0].name, "one");
    for (more, expected) in [
        ("--start one[0]=x", "is not SPLIT=OFFSET"),
        ("--start one[0]=1,one[0]=2", "stands there twice"),
        ("--start three[0]=1", "--start names \"three[0]\": name a split of an input"),
        ("--start nonsense", "write committed, committed-or-latest, earliest, latest, TOPIC[0]=OFFSET,.. or"),
        ("--discovery 0s", "write off, or a duration above 0"),
        ("--discovery 1s --until end", "--discovery with --until"),
    ] {
        problem(more, &[expected]);
    }
    let lost = BASE.replace("-b h:9092 --topic_one one --topic_two two", files) + " --on_lost_offset earliest";
    assert!(parsed(&lost).unwrap_err()[0].starts_with("--on_lost_offset without an input in Kafka"));
}

#[cfg(feature = "kafka")]
#[test]
fn several_topics_of_a_side_need_a_name() {
    let kafka = |topics: &str| parsed(&BASE.replace("--topic_one one --topic_two two", topics));
    let config = kafka("--topic_one a[0,2] --topic_two ^b.* --name_two bees --on_lost_offset latest").unwrap();
    assert_eq!((config.inputs[0].name.as_str(), config.inputs[1].name.as_str()), ("a", "bees"));
    assert_eq!(config.group, "fasten.a.bees.sync");
    assert_eq!(config.broker_options("h:1").on_lost_offset, OnLost::Latest);
    assert_eq!(config.broker_options("file:x").on_lost_offset, OnLost::Fail);
    let found = kafka("--topic_one a,b --topic_two ^c").unwrap_err();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("\"a,b\" may be several topics") && found[1].contains("--name_two NAME"), "{found:?}");
    for (topics, expected) in [
        ("--topic_one a,b --name_one x --topic_two b", "mean the same topic"),
        ("--topic_one ^a.* --name_one x --topic_two ab", "mean the same topic"),
        ("--topic_one ^fasten.* --name_one x --topic_two b", "which the input \"^fasten.*\" means too"),
        ("--topic_one a --topic_two b --start a[0]=1,c[0]=2", "--start names \"c[0]\""),
    ] {
        let found = kafka(topics).unwrap_err();
        assert!(found.len() == 1 && found[0].contains(expected), "{topics}: {found:?}");
    }
    assert!(kafka("--topic_one a[0] --topic_two a[1] --name_two b").is_ok());
}
