//! What a job costs that has nothing to do, in shares of a core.
//!
//! `cargo bench --bench idle` (about a minute: the jobs run side by side, each in a process of its own; with `--features kafka` on
//! Kafka too, which needs Java); `-- --smoke` takes 3 seconds and judges nothing.
//!
//! What should be free: a job on the memory broker, which wakes its reader when something comes. What cannot be quite free:
//! followed files, whose length is looked at 20 times a second, and records that wait, because time must pass for them.

#[cfg(feature = "kafka")]
#[path = "support/kafka_broker.rs"]
mod kafka_broker;
#[path = "support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use support::{Better, Target, machine, process_cpu};
use syncline::broker::memory::MemoryBroker;
use syncline::broker::{self, BrokerOptions};
use syncline::dataflow::Input;
use syncline::job::Job;
use syncline::sync::topics::{TopicOutputs, key_codec, synchronize_topics};
use syncline::sync::{KeyTypes, Options, Tally};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

/// The first argument of a process that runs one job.
const CHILD: &str = "--child";
/// What the jobs do: the broker, how many records wait, and what share of a core in % is too much.
const JOBS: [(&str, usize, Option<f64>); 4] =
    [("memory", 0, Some(0.2)), ("file", 0, Some(0.2)), ("memory", 1_000, None), ("file", 1_000, None)];
/// Until the job has started and has nothing to do any more.
const SETTLE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune(); // as the binary does
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, broker, waiting, seconds] = &args[..]
        && child == CHILD
    {
        let number = |text: &str| text.parse().expect("a number");
        println!("{}", child_cpu(broker, number(waiting) as usize, number(seconds)).as_secs_f64());
        return ExitCode::SUCCESS;
    }
    let smoke = args.iter().any(|arg| arg == "--smoke");
    let seconds: u64 = if smoke { 1 } else { 60 };
    println!("idle: {}", machine());
    let mut jobs: Vec<(String, usize, Option<f64>)> =
        JOBS.iter().map(|(broker, waiting, most)| (broker.to_string(), *waiting, *most)).collect();
    #[cfg(feature = "kafka")]
    let kafka = kafka_broker::Broker::start();
    #[cfg(feature = "kafka")]
    {
        kafka.create(2, &["one", "two", "joined"]);
        jobs.push((kafka.hosts.clone(), 0, Some(1.0)));
    }
    let children: Vec<_> = jobs
        .iter()
        .map(|(broker, waiting, _)| {
            let mut command = Command::new(std::env::current_exe().expect("the bench has a path"));
            command.args([CHILD, broker, &waiting.to_string(), &seconds.to_string()]).stdout(Stdio::piped());
            command.spawn().expect("the process starts")
        })
        .collect();
    let mut reached = true;
    for ((broker, waiting, most), child) in jobs.iter().zip(children) {
        let output = child.wait_with_output().expect("the process ends");
        assert!(output.status.success(), "the job on {broker} ends with {}", output.status);
        let cpu: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("the process prints a number");
        let share = 100.0 * cpu / seconds as f64;
        if let Some(most) = *most {
            let target = Target { better: Better::Low, must: most, goal: most };
            let (line, judged) =
                target.verdict(&format!("{broker}, nothing to do for {seconds} s"), share, " % of a core");
            println!("{line}");
            reached &= judged;
        } else {
            println!("{broker}, {waiting} records wait for {seconds} s: {share:.2} % of a core");
        }
    }
    if reached || smoke { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a job with so many records that wait; the CPU time of the process in so many seconds.
fn child_cpu(broker: &str, waiting: usize, seconds: u64) -> Duration {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let url = match broker {
        "file" => format!("file:{}", folder.path().display()),
        "memory" => "memory:idle".to_owned(),
        hosts => hosts.to_owned(),
    };
    let lines: Vec<String> = (0..waiting).map(|number| format!("{{\"k\":{number}}}")).collect();
    prepare(&url, folder.path(), &lines);
    let input = |topic: &str| {
        let source = broker::source(&url, topic, &BrokerOptions::default()).expect("a source");
        let codec = key_codec(vec!["k".parse().expect("a path")], None, KeyTypes::Typed).expect("a codec");
        (topic.to_owned(), Input::new(topic, source, codec))
    };
    let sides = [input("one"), input("two")];
    let sink = broker::sink(&url, &BrokerOptions::default()).expect("a sink");
    let outputs = TopicOutputs { sink, joined: "joined".into(), delay: None, dead_letter: None };
    let options = Options::new(2, Duration::from_secs(3_600));
    let tally = Arc::new(Tally::default());
    let counted = Arc::clone(&tally);
    let job = Job::new("idle");
    let control = job.control();
    let running = thread::spawn(move || {
        job.run(timely::Config::thread(), move |flow| synchronize_topics(flow, &sides, &options, &outputs, &counted))
    });
    thread::sleep(SETTLE);
    assert_eq!(tally.totals().counts.pending_records, waiting as u64, "the job has not read its records");
    let before = process_cpu();
    thread::sleep(Duration::from_secs(seconds));
    let cpu = process_cpu() - before;
    control.stop();
    running.join().expect("the job does not panic").expect("the job does not fail");
    cpu
}

/// Makes both topics; the first one has these lines.
fn prepare(url: &str, folder: &Path, lines: &[String]) {
    match url.strip_prefix("memory:") {
        Some(name) => {
            let broker = MemoryBroker::named(name);
            ["one", "two"].iter().for_each(|topic| broker.create_topic(topic, 1));
            broker.extend("one", 0, lines.iter().cloned()).expect("the topic is there");
        }
        None if !url.starts_with("file:") => assert!(lines.is_empty(), "topics of Kafka are made before, and empty"),
        None => {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            std::fs::write(folder.join("one.jsonl"), text).expect("the file can be written");
            std::fs::write(folder.join("two.jsonl"), "").expect("the file can be written");
        }
    }
}
